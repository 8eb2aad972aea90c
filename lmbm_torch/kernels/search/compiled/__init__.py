"""Searches compiled for the CPU."""
