"""Labelling by hand with a trained model beside: what is said of some labels changes what it says of others.

* ``completions``: a model's answer for one row, given known labels, and what each of these changes;
* ``session``: a table that is being labelled, and the file that it is written to;
* ``app``: the page, on this machine alone.
"""
