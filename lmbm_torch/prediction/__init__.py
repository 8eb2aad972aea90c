"""A trained model on new rows, without Lightning: saved models, decoding, probabilities, reports.

* ``saved``, ``fitted``: models and estimators as files hold them;
* ``answers``, ``probabilities``: what they say of new rows;
* ``findings``, ``pages``, ``reports``: and how good that is.
"""
