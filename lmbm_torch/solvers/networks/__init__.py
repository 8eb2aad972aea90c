"""Sigmoid belief networks: one hinge problem for each label, linear or with a kernel."""
