"""Searches over labels: branch and bound, best first, beams, flips."""
