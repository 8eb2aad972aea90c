"""Chains of scikit-learn classifiers, one for each label, decoded jointly."""
