"""Structural SVMs learn against allowed labellings alone, and missing labels are completed by such."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems.under_rules import NAMES, RULES
from problems.under_rules import X as COUNTS
from problems.under_rules import Y as LABELS
from sklearn.base import clone
from strategies.pairwise import all_labellings

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.base import to_spins
from lmbm_torch.estimators import LMBMClassifier, StructuralSVMClassifier
from lmbm_torch.estimators.common.decoders import completion
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.references.structural import enumerated_planes, structural_primal
from lmbm_torch.solvers.structural.label_vectors import label_vector_problem

ALLOWED = Constraints.of(RULES, NAMES)
BY_PLACE = [text.replace("sun", "label_0").replace("rain", "label_1") for text in RULES]
BY_PLACE = [text.replace("city", "label_2").replace("field", "label_3") for text in BY_PLACE]
X, Y = COUNTS[:30] / 10, LABELS[:30]
SETTINGS = {"C": 0.1, "coupling_penalty": 2.0, "tol": 1e-4, "random_state": 0}
CHAIN = [(0, 1), (1, 2), (2, 3)]
FULL = [*CHAIN, (0, 2), (0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("decoder", "graph", "pairs"),
    [
        ("auto", "full", FULL),
        ("exact", "full", FULL),
        ("viterbi", "chain", CHAIN),
    ],
)
def test_the_objective_is_the_least_over_allowed_labellings(decoder, graph, pairs):
    assert ALLOWED.violated(Y).any(), "some instances' own labels are forbidden, and compete all the same"
    settings = {**SETTINGS, "decoder": decoder, "graph": graph}
    model = StructuralSVMClassifier(**settings, constraints=BY_PLACE).fit(X, Y)
    problem = label_vector_problem(X, Y, exact.decode, pairs=pairs, C=0.1, coupling_penalty=2.0)
    planes = enumerated_planes(problem.oracle)
    labellings = np.tile(all_labellings(4).squeeze(1).int().numpy(), (len(X), 1))
    own = (labellings == Y[planes.example]).all(1)
    reference = structural_primal(problem, planes.select(own | ~ALLOWED.violated(labellings).any(1)))
    assert model.objective_ == pytest.approx(reference.primal, rel=1e-4)
    assert model.duality_gap_ <= 1e-4
    assert StructuralSVMClassifier(**settings).fit(X, Y).objective_ > model.objective_ * 1.001


def test_relaxed_training_is_certified_for_the_relaxation_of_what_is_allowed():
    settings = {**SETTINGS, "decoder": "lp_relaxation", "tol": 1e-4}
    model = StructuralSVMClassifier(**settings, constraints=BY_PLACE).fit(X, Y)
    exactly = StructuralSVMClassifier(**SETTINGS, constraints=BY_PLACE).fit(X, Y)
    assert model.duality_gap_ <= 1e-4
    assert exactly.objective_ * (1 - 1e-4) <= model.objective_
    assert model.objective_ < StructuralSVMClassifier(**settings).fit(X, Y).objective_ * 0.999


def test_no_labelling_that_is_forbidden_competes():
    # Of exclusive labels each instance has one, and any other is two flips away.
    X = np.eye(3)[[0, 1, 2] * 5]
    rules = ["exactly_one(label_0, label_1, label_2)"]
    model = StructuralSVMClassifier(C=10.0, tol=1e-4, random_state=0, constraints=rules).fit(X, X)
    np.testing.assert_array_equal(model.predict(X), X)
    energy = model.energy(X[:3])
    score = energy.score(torch.eye(3)[:, None]).numpy()
    # A margin of two for each other class; without rules that of every labelling would be asked for.
    margins = np.diag(score) - (score - 1e9 * np.eye(3)).max(1)
    np.testing.assert_allclose(margins, 2, atol=1e-2)


def test_a_decoder_that_cannot_hold_labels_is_refused():
    model = StructuralSVMClassifier(decoder=lambda energy: exact.decode(energy), constraints=BY_PLACE)
    with pytest.raises(
        ValueError, match="constraints: expected None, because the decoder takes no known labels"
    ):
        model.fit(X, Y)


@pytest.mark.parametrize(
    "estimator",
    [
        StructuralSVMClassifier(random_state=0),
        StructuralSVMClassifier(decoder="exact", random_state=0),
        LMBMClassifier(random_state=0),
        LMBMClassifier(decoder="exact", random_state=0),
    ],
)
def test_missing_labels_are_completed_by_what_is_allowed(estimator):
    rows = ~ALLOWED.violated(LABELS).any(1)
    X, Y = COUNTS[rows] / 10, LABELS[rows]
    missing = np.where(np.random.default_rng(0).random(Y.shape) < 0.4, np.nan, Y)
    # Both labels known that exclude each other: nothing allowed is left of this one.
    missing[0] = [1, 1, np.nan, np.nan]
    model = clone(estimator).set_params(constraints=BY_PLACE).fit(X, missing)
    energy = model.energy(X)
    unruled = model._decode_energy(energy, torch.from_numpy(missing)).labels.numpy()
    assert ALLOWED.violated(unruled).any(1).sum() > 1, "else rules are not needed"
    completed = completion.completed(model, energy, missing)
    assert ALLOWED.violated(completed).any(1).nonzero()[0].tolist() == [0]
    known = ~np.isnan(missing)
    np.testing.assert_array_equal(completed[known], missing[known])
    # Each is the best allowed one given what is known.
    every = all_labellings(4)
    allowed = ~ALLOWED.violated(every.squeeze(1).int().numpy()).any(1)
    if estimator.capabilities.minimises:
        worth = -(1 - energy.local_margins(every)).clamp(min=0).sum(-1)
    else:
        worth = energy.score(every)
    agree = ((every == torch.from_numpy(missing)) | torch.from_numpy(~known)).all(-1)
    worth = worth.masked_fill(~(agree & torch.from_numpy(allowed)[:, None]), -torch.inf)
    best = to_spins(every.squeeze(1)[worth.argmax(0)].numpy(), np.int64) > 0
    np.testing.assert_array_equal(completed[1:], best[1:])
