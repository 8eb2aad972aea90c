"""Classifiers around a classifier: rules, conformal sets, paths over C, thresholds."""
