"""The comparison of the library's families with usual classifiers on a data set, with paired tests.

This package is internal and may change.

* ``methods``, ``baselines``: the methods and the searched settings;
* ``trials``, ``significance``: each method on each split, and the summary; ``comparing``, the table;
* ``tables``: the files of a table.
"""
