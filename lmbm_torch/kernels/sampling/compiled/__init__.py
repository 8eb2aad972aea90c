"""Compiled by numba."""
