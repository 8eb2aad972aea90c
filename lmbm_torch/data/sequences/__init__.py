"""Labelled sequences: the record and the readers."""
