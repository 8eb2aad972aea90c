"""The parts that inference routines share; they may change at any time."""
