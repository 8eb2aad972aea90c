"""Table of routes, and answers put together from other answers.

This package is internal and may change.
"""
