"""Message passing, mean field, and bounds by messages."""
