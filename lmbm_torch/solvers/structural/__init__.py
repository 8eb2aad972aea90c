"""Structural SVMs over any outputs that an oracle can search."""
