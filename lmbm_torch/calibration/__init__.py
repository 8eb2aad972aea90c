"""Calibration of the probabilities of labels and of label sets. This package is internal and may change."""
