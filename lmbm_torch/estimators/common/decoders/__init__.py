"""Classifiers of label sets, their distributions, completion of labels, and calibration."""
