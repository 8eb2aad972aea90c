"""Labelled sequences: the class of data sets, and readers."""
