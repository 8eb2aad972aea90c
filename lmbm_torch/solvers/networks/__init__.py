"""Sigmoid belief networks: one hinge problem a label, linear or with a kernel."""
