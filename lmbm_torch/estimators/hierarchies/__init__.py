"""Scikit-learn classifiers under a hierarchy of labels."""
