"""Explanations of answers: contributions of features and of labels."""
