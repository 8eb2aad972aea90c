"""Explanations of predicted labels, by contributions of features and of labels."""
