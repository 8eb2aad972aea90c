"""Classifiers of one label of many classes."""
