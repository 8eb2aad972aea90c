"""Calibration of the probabilities of labels and of label sets."""
