"""Every classifier of label matrices takes rules for one call, and obeys them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from strategies.label_problems import random_inputs

from lmbm_torch import estimators
from lmbm_torch.constraints import Constraints

X, Y = random_inputs(2, 60, 4, 4)
PUBLIC = [name for name in estimators.__all__ if isinstance(getattr(estimators, name), type)]
NAMES = [f"label_{label}" for label in range(4)]
RULES = Constraints.of(["label_0 -> not label_1", "at_least(1, label_2, label_3)"], NAMES)
NETWORK = estimators.LMSBNClassifier(random_state=0)
GIVEN = {
    "ConditionalRBMClassifier": {"num_hidden": 2, "max_iter": 2, "random_state": 0},
    "ConformalClassifier": {"estimator": RandomForestClassifier(5, random_state=0), "coverage": 0.6},
    "ConstrainedClassifier": {"estimator": NETWORK},
    "IndependentLabelsClassifier": {"estimator": LogisticRegression()},
    "JointClassifier": {"base": LogisticRegression()},
    "JointConformalClassifier": {"estimator": NETWORK, "coverage": 0.6},
    "JointHead": {"scores": "logits"},
    "LMSBNEnsembleClassifier": {"num_members": 2, "random_state": 0},
    "LabelForestClassifier": {"num_trees": 10, "random_state": 0},
    "ProbabilisticClassifierChain": {"estimator": LogisticRegression()},
    "ThresholdTunedClassifier": {"base": NETWORK, "cv": 2},
    "LMBMClassifierCV": {"Cs": [0.1, 1.0], "cv": 2},
    "LMSBNClassifierCV": {"Cs": [0.1, 1.0], "cv": 2},
    "StructuralSVMClassifierCV": {"Cs": [0.1, 1.0], "cv": 2},
}
# Of positions, of nodes, of classes, of a hierarchy, which is their rule, and of thresholds for a risk.
OTHERS = {
    *("ChainCRF", "ChainSVM", "HiddenMarkovClassifier", "MaximumEntropyMarkovClassifier"),
    *("GraphClassifier", "GridClassifier"),
    *("HierarchicalClassifier", "KernelLogisticRegression", "MultiClassSVM", "RiskControlledClassifier"),
}


def method_with_rules(kind):
    """The first of its methods that takes rules for one call."""
    for name in ("decode", "predict", "predict_set"):
        if "constraints" in inspect.signature(getattr(kind, name, len)).parameters:
            return name
    return None


def test_every_classifier_of_label_matrices_takes_rules():
    lacking = {name for name in PUBLIC if method_with_rules(getattr(estimators, name)) is None}
    assert lacking == OTHERS


# Of AutoLabelClassifier see test_automatic_rules.
@pytest.mark.parametrize("name", sorted({*PUBLIC} - OTHERS - {"AutoLabelClassifier"}))
def test_answers_obey_the_rules_of_one_call(name):
    kind = getattr(estimators, name)
    method = method_with_rules(kind)
    assert method is not None
    model = kind(**GIVEN.get(name, {})).fit(X, Y.astype(np.int64))
    came = getattr(model, method)(X, constraints=RULES)
    if method == "predict_set":
        assert ((came.certain[:, 0] & came.possible[:, 1]) <= (came.certain[:, 1] | came.certain[:, 0])).all()
        return
    labels = came if method == "predict" else came.labels.numpy()
    assert RULES.violated(model.predict(X)).any(), "else rules are not needed"
    assert not RULES.violated(labels).any()
