"""Families of models and their usual peers compared on one set, over several splits, with paired tests.

* ``methods``, ``baselines``: the methods and the settings that they choose from;
* ``trials``, ``significance``: each on each split, and what is left of them; ``comparing``, the table;
* ``cells``, ``evaluation``, ``tables``: cells that are computed once, their metrics, and a table's files.
"""
