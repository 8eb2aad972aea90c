"""scikit-learn classes: thin, over models + solvers + inference; and the papers' baselines."""

from lmbm_torch.estimators.sigmoid_belief import LMSBNClassifier
from lmbm_torch.estimators.sigmoid_belief_ensemble import LMSBNEnsembleClassifier

__all__ = ["LMSBNClassifier", "LMSBNEnsembleClassifier"]
