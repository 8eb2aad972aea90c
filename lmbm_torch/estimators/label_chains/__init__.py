"""Chains of anyone's classifiers, one a label, decoded jointly."""
