"""Networks of labels with few chosen parents: sparse in and out, the same weights wherever learned."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.networks import network_training as few_parents
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.fitting import recipe
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.solvers.networks import chosen_parents
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, held_out_losses, solve_block


def drawn(instances: int = 150, labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(instances, 5))
    shared = random.normal(size=(instances, 2))
    scores = X @ random.normal(size=(5, labels)) + 2 * shared @ random.normal(size=(2, labels))
    return X, (scores > 1).astype(float)


def fitted(**settings) -> LMSBNClassifier:
    X, Y = drawn()
    return LMSBNClassifier(**{"C": 1.0, "random_state": 0, "max_parents": 2, **settings}).fit(X, Y)


def test_labels_have_few_parents_and_answers_are_those_of_enumeration():
    X, Y = drawn()
    model = fitted()
    assert model.duality_gap_ <= model.tol
    assert (np.count_nonzero(model.parent_coef_, axis=1) <= 2).all()
    assert model.parent_coef_.any()
    position = np.argsort(model.ordering_)
    child, parent = np.nonzero(model.parent_coef_)
    assert (position[parent] < position[child]).all()
    energy = model.energy(X[:40])
    best = exact.decode_hinge(energy, margin=1.0)
    assert np.array_equal(model.predict(X[:40]), best.labels.numpy())
    # The report is that of the model itself.
    spins = 2 * Y - 1
    fields = X @ model.coef_.T + model.intercept_ + spins @ model.parent_coef_.T
    losses = np.maximum(1 - spins * fields, 0).sum(1)
    assert model.mean_loss_ == pytest.approx(losses.mean())
    own_bias = model.intercept_ - model.parent_coef_.sum(1)
    norm = (model.coef_**2).sum() + (model.parent_coef_**2).sum() + (own_bias**2).sum()
    assert model.objective_ == pytest.approx(0.5 * norm + losses.sum())


@pytest.mark.parametrize("class_weight", ["balanced", {1: 3.0}])
def test_class_weights_move_with_their_labels(class_weight):
    X, Y = drawn()
    order = [4, 0, 6, 2, 5, 1, 3]
    model = fitted(class_weight=class_weight, ordering=order)
    moved = LMSBNClassifier(
        C=1.0, random_state=0, max_parents=2, class_weight=class_weight, ordering=range(7)
    ).fit(X, Y[:, order])
    np.testing.assert_allclose(model.coef_[order], moved.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.parent_coef_[order][:, order], moved.parent_coef_, rtol=1e-12)


def test_labels_may_be_sparse_and_are_predicted_sparse():
    X, Y = drawn()
    dense = fitted(C="scale")
    came = LMSBNClassifier(max_parents=2, random_state=0, sparse_output=True).fit(X, sparse.csr_matrix(Y))
    assert np.array_equal(came.coef_, dense.coef_)
    assert np.array_equal(came.parent_coef_, dense.parent_coef_)
    assert came.label_names_ == dense.label_names_
    predicted = came.predict(X)
    assert isinstance(predicted, sparse.csr_array)
    assert np.array_equal(predicted.toarray(), dense.predict(X))
    assert came.score(X, sparse.csr_array(Y)) == dense.score(X, Y)
    assert came.predict_names(X) == dense.predict_names(X)


def test_rows_are_predicted_some_at_a_time(monkeypatch):
    X, _ = drawn()
    model = fitted(sparse_output=True)
    whole = model.predict(X).toarray()
    monkeypatch.setattr(targets, "VALUES_AT_ONCE", 7 * 11)
    assert np.array_equal(model.predict(X).toarray(), whole)
    known = np.full(whole.shape, np.nan)
    known[:, 3] = 1
    assert (model.predict(X, known).toarray()[:, 3] == 1).all()


def test_parents_are_chosen_where_labels_are_many(monkeypatch):
    assert np.count_nonzero(fitted(max_parents="auto").parent_coef_) > 2 * 7
    monkeypatch.setattr(recipe, "MANY_LABELS", 6)
    monkeypatch.setattr(few_parents, "COUNTS", (1,))
    model = fitted(max_parents="auto")
    assert (np.count_nonzero(model.parent_coef_, axis=1) <= 1).all()
    assert np.array_equal(model.ordering_, orderings.frequency(drawn()[1]))
    assert (model.max_parents_, fitted(max_parents=None).max_parents_) == (1, None)


def of_neighbours(parents: int, noise: float) -> ManyLabels:
    """Problems of labels that are the majority of so many labels before them, but for noise."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, size=(400, 12))
    for k in range(parents, 12):
        votes = labels[:, k - parents : k].sum(1) * 2 > parents
        labels[:, k] = votes ^ (random.random(400) < noise)
    X = random.normal(size=(400, 3))
    return ManyLabels(features=X, labels=sparse.csc_array(labels, dtype=float), C=1.0)


@pytest.mark.parametrize("parents", [1, 5])
def test_cross_validation_finds_how_many_parents_labels_have(monkeypatch, parents):
    monkeypatch.setattr(few_parents, "COUNTS", (1, 2, 5))
    chosen = few_parents.chosen_count(of_neighbours(parents, 0.1), max_iter=1000, seed=0)
    assert chosen == parents


@pytest.mark.parametrize("weights", [None, (400,), (400, 12)])
def test_held_out_losses_are_those_of_networks_that_never_saw_them(monkeypatch, weights):
    random = np.random.default_rng(1)
    problems = of_neighbours(3, 0.1)
    if weights is not None:
        problems = replace(problems, sample_weight=random.uniform(0.5, 2, size=weights))
    train, held_out = np.split(random.permutation(400), [300])
    settings: dict[str, Any] = {"max_iter": 1000, "seed": 0}
    settings["labels"] = range(12)
    alone = [held_out_losses(problems, (train, held_out), counts=[count], **settings) for count in (1, 4)]
    for count, (loss,) in zip((1, 4), alone, strict=True):
        limits: dict[str, Any] = {"max_parents": count, "tol": 1e-2, "max_iter": 1000, "seed": 0}
        solved = solve_block(problems.rows(train), range(12), **limits)
        others, spins = problems.rows(held_out), 2 * problems.labels[held_out].toarray() - 1
        fields = others.features @ solved.features.T + solved.bias + spins @ solved.parents.toarray().T
        losses = np.maximum(1 - spins * fields, 0)
        if weights is not None:
            losses = losses * others.sample_weight.reshape(100, -1)
        assert loss == pytest.approx(losses.sum())
    # Together, each limit begins at the duals of the one before, and ends nearby.
    monkeypatch.setattr(chosen_parents, "FIRST_TOL", 1e-7)
    alone = [held_out_losses(problems, (train, held_out), counts=[count], **settings) for count in (1, 4)]
    together = held_out_losses(problems, (train, held_out), counts=(1, 4), **settings)
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-3)


def test_the_choice_is_the_same_without_a_seed_and_in_other_processes(monkeypatch):
    monkeypatch.setattr(recipe, "MANY_LABELS", 6)
    monkeypatch.setattr(few_parents, "COUNTS", (1, 2, 3))
    here = fitted(max_parents="auto", random_state=None)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        there = fitted(max_parents="auto", random_state=None)
    assert here.max_parents_ == there.max_parents_


def test_calibration_keeps_the_choice(monkeypatch):
    monkeypatch.setattr(recipe, "MANY_LABELS", 6)
    calls = []
    choose = few_parents.chosen_count
    monkeypatch.setattr(
        few_parents, "chosen_count", lambda *given, **settings: calls.append(1) or choose(*given, **settings)
    )
    fitted(max_parents="auto", calibrate=True)
    assert len(calls) == 1


def test_labels_are_learned_alike_in_other_processes(monkeypatch):
    monkeypatch.setattr("lmbm_torch.solvers.networks.chosen_parents.BLOCK", 4)
    here = fitted()
    with joblib.parallel_config(backend="loky", n_jobs=2):
        there = fitted()
    for name in ("coef_", "intercept_", "parent_coef_", "objective_", "n_iter_"):
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"kernel": "rbf"}, "the linear kernel"),
        ({"degree": 3}, "degree=2"),
        ({"solver": "pegasos"}, "solver='dual_coordinate'"),
    ],
)
def test_settings_that_need_all_parents_are_refused(settings, match):
    with pytest.raises(ValueError, match=f"max_parents: expected None, since other values need {match}"):
        fitted(**settings)


def test_missing_labels_need_all_parents():
    X, Y = drawn()
    Y[0, 0] = np.nan
    with pytest.raises(ValueError, match="no missing labels"):
        LMSBNClassifier(max_parents=2).fit(X, Y)


def test_sparse_labels_are_zero_and_one():
    X, Y = drawn()
    Y[0, 0] = 2
    with pytest.raises(ValueError, match="y: expected"):
        LMSBNClassifier(max_parents=2).fit(X, sparse.csr_array(Y))


def test_sparse_predictions_are_zero_and_one():
    X, Y = drawn()
    model = LMSBNClassifier(max_parents=2, sparse_output=True).fit(X, 2 * Y - 1)
    with pytest.raises(ValueError, match="sparse_output"):
        model.predict(X)


def test_class_weights_and_calibration_take_sparse_labels():
    X, Y = drawn(60, 3)
    settings = {"max_parents": 1, "class_weight": "balanced", "calibrate": "scale", "random_state": 0}
    models = [LMSBNClassifier(**settings).fit(X, form(Y)) for form in (np.asarray, sparse.csr_array)]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert models[0].calibration_ is not None


def test_frequency_puts_common_labels_first():
    Y = np.array([[0, 1, 1], [0, 1, 0], [0, np.nan, 1]])
    assert orderings.frequency(Y).tolist() == [1, 2, 0]
    assert orderings.frequency(sparse.csr_array(np.nan_to_num(Y))).tolist() == [1, 2, 0]


def test_what_searches_leave_open_is_proven_by_a_junction_tree_where_parents_are_few():
    random = np.random.default_rng(0)
    rows, weights = random.normal(size=(80, 4)), random.normal(size=(4, 40))
    labels = (rows @ weights + random.normal(size=(80, 40)).cumsum(1) > 0).astype(int)
    # Names of columns are compared once, for the search and for the tree.
    rows = pd.DataFrame(rows, columns=list("abcd"))
    network = LMSBNClassifier(max_parents=1, node_limit=60, random_state=0).fit(rows, labels)
    searched = branch_and_bound.decode_hinge(network.energy(rows), node_limit=60)
    assert not searched.status.exact.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = network.predict(rows)
    decoding = network.decode(rows)
    assert decoding.status.exact.all()
    assert (decoding.objective <= searched.objective + 1e-9).all()
    np.testing.assert_array_equal(found, decoding.labels)
    assert (network.predict_proba(rows).shape, network.marginals(rows).status.exact.all()) == ((80, 40), True)
