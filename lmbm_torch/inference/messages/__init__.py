"""Message passing, mean field, and bounds of the log partition by messages."""
