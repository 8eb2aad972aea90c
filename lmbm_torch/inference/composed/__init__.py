"""Answers that are put together from those of other routines."""
