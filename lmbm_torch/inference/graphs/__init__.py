"""Graphs of labels of many states, with tables over any number of labels."""
