"""Samples from models, and estimates from samples."""
