"""Classifiers that wrap a classifier: rules, thresholds, penalty paths, conformal label sets."""
