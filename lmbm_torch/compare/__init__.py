"""The comparison of the library's classifiers with usual classifiers on a data set, with paired tests.

This package is internal and may change.

* ``methods``, ``baselines``: the methods, and the settings to try for each;
* ``trials``: the results of each method on each split, and the summary with tests;
* ``comparing``, ``tables``: the whole comparison, and the files of the table.
"""
