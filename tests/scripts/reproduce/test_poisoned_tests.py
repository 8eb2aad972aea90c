"""Tables choose without their test part: where its labels are noise, only the final scores change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from problems.small import small_data

from lmbm_torch.compare import trials
from lmbm_torch.compare.methods import METHODS, Tuned
from lmbm_torch.estimators.networks import orderings
from reproduce import linear_networks, lmsbn_2010

SETTINGS = trials.Settings(splits=2, test_fraction=0.25, budget=4, folds=2, seed=0)
SCORES = {"exact_match", "sample_f1", "hamming_loss", "macro_f1", "micro_f1", "proven"}


def poisoned(data):
    """Labels and features of the test part that have nothing to do with each other."""
    labels, features = data.labels.copy(), data.features.copy()
    generator = np.random.default_rng(1)
    labels[data.test] = generator.integers(2, size=labels[data.test].shape)
    features[data.test] = 100 * np.flip(features[data.test], 1)
    return replace(data, labels=labels, features=features)


def tuned(name):
    method = METHODS[name]
    assert isinstance(method, Tuned)
    return partial(trials.try_tuned, method=method, settings=SETTINGS, seed=0)


def chained(data):
    base = linear_networks.cross_validate(data, *linear_networks.METHODS["LMSBN, F-score order"])
    return linear_networks.ensemble(data, base | {"method": "LMSBN, F-score order"})


def thresholds(data):
    base = lmsbn_2010.cross_validate(data, lmsbn_2010.BINARY_LINEAR)
    return lmsbn_2010.tuned(data, "sample_f1", base | {"method": lmsbn_2010.BINARY_LINEAR})


CHOICES = {
    **{
        f"linear_networks, {name}": lambda data, name=name: linear_networks.cross_validate(
            data, *linear_networks.METHODS[name]
        )
        for name in ("independent linear SVMs", "LMSBN, F-score order")
    },
    "linear_networks, an ensemble": chained,
    "lmsbn_2010, a network": lambda data: lmsbn_2010.cross_validate(data, "LMSBN lf: linear, F-score order"),
    "lmsbn_2010, thresholds": thresholds,
    **{f"compare, {name}": tuned(name) for name in list(METHODS)[:2]},
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CHOICES)
def test_nothing_but_the_final_scores_depends_on_the_test_part(monkeypatch, name):
    monkeypatch.setattr(linear_networks, "PENALTIES", (0.1, 10.0))
    few = {each: replace(method, penalties=(0.3, 3.0)) for each, method in lmsbn_2010.METHODS.items()}
    monkeypatch.setattr(lmsbn_2010, "METHODS", few)
    data = small_data()
    clean, dirty = CHOICES[name](data), CHOICES[name](poisoned(data))
    kept = {key for key in clean if key not in SCORES and "seconds" not in key}
    assert {"scaling"} < kept
    assert {key: dirty[key] for key in kept} == {key: clean[key] for key in kept}
    # The poison reached what it should.
    assert dirty["exact_match"] < clean["exact_match"]


def test_orders_of_labels_are_chosen_within_each_training_part(monkeypatch):
    network = "LMSBN lf: linear, F-score order"
    few = replace(lmsbn_2010.METHODS[network], penalties=(0.3,))
    monkeypatch.setattr(lmsbn_2010, "METHODS", {network: few})
    seen = []

    def recorded(X, labels, **options):
        seen.append(len(labels))
        return orderings.f_score(X, labels, **options)

    monkeypatch.setattr(lmsbn_2010, "orderings", SimpleNamespace(f_score=recorded))
    found = lmsbn_2010.cross_validate(small_data(), network)
    # Five folds of 60 instances and a fit to all of them, for each of two scalings.
    assert sorted(seen) == [48] * 10 + [60] * 2
    assert sorted(found["ordering"]) == [0, 1, 2, 3]
