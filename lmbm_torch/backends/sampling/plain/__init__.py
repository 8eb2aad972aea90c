"""The references."""
