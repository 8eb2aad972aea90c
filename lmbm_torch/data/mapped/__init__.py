"""Data sets larger than memory, read from a folder."""
