"""Choice of the routine that answers a question about an energy, and answers combined from several routines.

This package is internal and may change.
"""
