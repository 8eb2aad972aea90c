"""Units that are given, and how iterations begin and end: what the rooms of inference share."""
