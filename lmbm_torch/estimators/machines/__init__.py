"""Boltzmann machines: large margin, structural SVM, conditional RBM."""
