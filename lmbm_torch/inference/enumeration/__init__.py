"""Enumeration of labellings, the oracle of all other routines."""
