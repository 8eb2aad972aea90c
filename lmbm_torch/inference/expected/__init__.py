"""Labellings of the largest expected measure."""
