"""Classifiers that decode label sets, their distributions, completion of labels, and calibration."""
