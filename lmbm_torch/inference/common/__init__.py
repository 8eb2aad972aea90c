"""Inputs, results, iterations and limits that the modules of inference share."""
