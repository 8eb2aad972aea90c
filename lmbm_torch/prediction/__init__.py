"""Predictions of trained models for new rows, without Lightning: loading, decoding, probabilities, reports.

* ``loading``: one call for run directories, checkpoints, saved models and estimators; ``saved``, ``fitted``
  and ``decoders``, what it returns;
* ``reading``, ``answers``, ``tables``: rows in, predictions and metrics out;
* ``probabilities``, ``findings``, ``dependencies``, ``pages``: how good they are; ``intervals``,
  ``pulling`` and ``advice``: parts of a report's page.
"""
