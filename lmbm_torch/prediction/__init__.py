"""Predictions of trained models and fitted estimators for new rows, without Lightning.

* ``predictor``: one predictor for run directories, checkpoints, saved models and estimators; ``trained``:
  trained models, and descriptions of decoders;
* ``reading``, ``answers``, ``tables``: rows in, predictions and metrics out;
* ``findings``: how good they are, and what to do next.
"""
