"""Samples, and estimates by samples."""
