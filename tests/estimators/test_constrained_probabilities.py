"""Probabilities of classifiers under rules against the sums over the labellings that are allowed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from problems.under_rules import NAMES, RULES, X, Y
from sklearn.linear_model import LogisticRegression

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    ConstrainedClassifier,
    LMBMClassifier,
    LMBMClassifierCV,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.common.decoders import distributions

FRAME = pd.DataFrame(Y, columns=NAMES)
EVERYTHING = np.array(list(product([0, 1], repeat=4)))
ESTIMATORS = [
    LMSBNClassifier(random_state=0),
    LMSBNEnsembleClassifier(LMSBNClassifier(random_state=0), num_members=2, random_state=0),
    LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=[1.0], cv=2, random_state=0),
    ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, max_cycles=1, num_steps=2),
    LMBMClassifier(random_state=0, calibrate="scale"),
    ConditionalRBMClassifier(num_hidden=2, max_iter=5, objective="mle", random_state=0),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_probabilities_are_the_estimators_given_that_rules_are_obeyed(estimator, monkeypatch):
    # More than one part of the instances.
    monkeypatch.setattr(distributions, "ROWS", 7)
    model = ConstrainedClassifier(estimator, RULES).fit(X[:60], FRAME[:60])
    rows = X[60:]
    free = np.stack([np.exp(model.estimator_.log_prob(rows, np.tile(each, (20, 1)))) for each in EVERYTHING])
    sun, rain, city, field = EVERYTHING.T
    allowed = (sun + rain < 2) & (city + field < 2) & ((rain == 0) | (city + field > 0))
    expected = free * allowed[:, None] / free[allowed].sum(0)
    with np.errstate(divide="ignore"):
        for labels, probability in zip(EVERYTHING, expected, strict=True):
            found = model.log_prob(rows, np.tile(labels, (20, 1)))
            np.testing.assert_allclose(found, np.log(probability), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        model.predict_proba(rows), np.einsum("sb,sl->bl", expected, EVERYTHING), atol=1e-7
    )
    assert model.marginals(rows).status.exact.all()
    drawn = model.sample(rows, 1500)
    assert drawn.shape == (1500, 20, 4)
    assert (EVERYTHING[allowed][:, None] == drawn.reshape(-1, 1, 4)[:, 0]).all(-1).any(0).all()
    np.testing.assert_allclose(drawn.mean(0), model.predict_proba(rows), atol=0.06)
    np.testing.assert_array_equal(drawn, model.sample(rows, 1500))


def test_members_count_by_what_they_give_to_what_is_allowed():
    # The first member gives nearly nothing to what is allowed, and would have label_1 there.
    fields = torch.tensor([[[2.0, 2.0]], [[-2.0, -2.0]]]).double()
    energies = [DirectedEnergy(each, torch.zeros(2, 2).double(), torch.arange(2)) for each in fields]
    rules = Constraints.of("not label_0", ("label_0", "label_1"))
    found = distributions.AllowedDistribution(energies, rules)
    odds = 1 / (1 + np.exp([-4.0, 4.0]))
    expected = (odds * (1 - odds)).sum() / (1 - odds).sum()
    marginals = found.marginals()
    assert marginals.labels[0, 1] == pytest.approx(expected)
    # The mixture's own probability of what is allowed, not its members' sum.
    assert marginals.log_partition[0] == pytest.approx(np.log((1 - odds).mean()))
    drawn = found.sample(4000, torch.Generator().manual_seed(0))
    assert not drawn[..., 0].any()
    assert drawn[..., 1].double().mean() == pytest.approx(expected, abs=0.01)


def test_networks_of_few_parents_and_many_labels_have_a_junction_tree():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(120, 6))
    parents = {f"label_{label}": f"label_{(label - 1) // 3}" for label in range(1, 30)}
    labels = np.ones((120, 30), int)
    for label in range(30):
        above = labels[:, (label - 1) // 3] if label else 1
        labels[:, label] = above * (features[:, label % 6] > -0.7)
    network = LMSBNClassifier(max_parents=1, random_state=0)
    model = ConstrainedClassifier(network, hierarchy=parents).fit(features, labels)
    found = model.marginals(features)
    assert found.method == "exact, by a junction tree"
    probability = found.labels.numpy()
    for child, parent in parents.items():
        child, parent = (int(name.removeprefix("label_")) for name in (child, parent))
        assert (probability[:, child] <= probability[:, parent] + 1e-12).all()
    drawn = model.sample(features, 50)
    assert not model._rules().violated(drawn.reshape(-1, 30)).any()
    dense = ConstrainedClassifier(network.set_params(max_parents=None), hierarchy=parents).fit(
        features, labels
    )
    with pytest.raises(ValueError, match="energy: expected a treewidth of at most"):
        dense.predict_proba(features)


def test_what_has_no_probabilities_has_none_under_rules():
    assert not hasattr(ConstrainedClassifier(StructuralSVMClassifier(), RULES), "predict_proba")
    assert hasattr(ConstrainedClassifier(StructuralSVMClassifier(calibrate=True), RULES), "sample")
    assert hasattr(ConstrainedClassifier(LMBMClassifierCV(), RULES), "predict_proba")
    # A chain's labels are decoded under rules; its distribution is not an energy that rules could restrict.
    chain = ConstrainedClassifier(ProbabilisticClassifierChain(LogisticRegression()), RULES)
    assert not hasattr(chain, "predict_proba")
    assert not hasattr(chain.fit(X, FRAME), "log_prob")
