"""Kernel logistic regression in the dual."""
