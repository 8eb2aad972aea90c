"""Classifiers of a single label with many classes."""
