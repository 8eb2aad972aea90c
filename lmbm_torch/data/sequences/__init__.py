"""Labelled sequences: the record, its readers and its batches."""
