"""Classifiers around classifiers: rules, thresholds, penalty paths, conformal label sets."""
