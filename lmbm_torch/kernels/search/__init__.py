"""Searches over labellings: branch and bound, and enumeration."""
