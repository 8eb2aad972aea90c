"""Advice says what the numbers say, and is silent where they say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems.small import NAMES, network

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, LMSBNClassifierCV
from lmbm_torch.inference.messages import mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.prediction.findings import Findings, advice
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.reports.pages import intervals

ROWS = 400
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(80, 3))
Y = (X[:, [0, 1, 2, 0]] + GENERATOR.normal(size=(80, 4)) > 0).astype(np.int64)


def plain() -> Predictor:
    return Predictor.of_model(network().eval(), NAMES)


def fitted(**settings) -> Predictor:
    return Predictor.of(LMSBNClassifier(random_state=0, **settings).fit(X, Y))


def good() -> Findings:
    """Rows of which nine decisions in ten are right, and whose probabilities say so."""
    generator = torch.Generator().manual_seed(0)
    truth = (torch.rand(ROWS, 4, generator=generator) < 0.5).long()
    joint = torch.where(torch.rand(ROWS, 4, generator=generator) < 0.1, 1 - truth, truth)
    return Findings(
        NAMES,
        np.arange(ROWS),
        truth,
        joint,
        joint,
        0.1 + 0.8 * joint,
        torch.full((ROWS,), torch.nan),
        torch.ones(ROWS, dtype=torch.bool),
        None,
        None,
        "by hand",
    )


def said(saved, found: Findings) -> list[str]:
    return advice(saved, found, intervals(found.joint, found.truth))


@pytest.mark.parametrize("saved", [plain(), fitted()])
def test_where_all_is_well_nothing_is_said(saved):
    assert said(saved, good()) == []


def test_what_is_no_better_than_no_features_is_said():
    found = good()
    usual = (found.truth.double().mean(0) > 0.5).long().expand_as(found.truth)
    assert "No measure is clearly better" in said(plain(), replace(found, joint=usual))[0]
    # One that is, is enough.
    better = found.truth.clone()
    better[:, 1:] = 1
    assert said(plain(), replace(found, joint=better)) == []


def test_labels_that_tell_nothing_are_named():
    found = good()
    truth, joint = found.truth.clone(), found.joint.clone()
    truth[:, 0], joint[:, 0], truth[:, 3] = 0, 0, 1
    words = said(plain(), replace(found, truth=truth, joint=joint, probability=truth.double()))
    assert len(words) == 2
    assert ["never true" in words[0], "sun" in words[0]] == [True, True]
    assert ["always true" in words[1], "sky" in words[1], "sun" in words[1]] == [True, True, False]


def test_labels_that_are_never_given_are_named_with_what_may_help():
    found = good()
    joint = found.joint.clone()
    joint[:, 2] = 0
    (words,) = said(plain(), replace(found, joint=joint))
    assert words.startswith("Labels true in some rows and given to none: sand. Try more rows")
    assert "class_weight" not in words
    (words,) = said(fitted(), replace(found, joint=joint))
    assert 'class_weight="balanced" or decoder="f1"' in words
    (words,) = said(fitted(decoder="f1", class_weight="balanced"), replace(found, joint=joint))
    assert words.endswith("Try more rows where they are true.")


def test_of_many_labels_some_are_named():
    found = good()
    wide = {name: getattr(found, name).repeat(1, 5) for name in ("truth", "joint", "alone", "probability")}
    wide["joint"][:, 4:] = 0
    names = tuple(f"n{k}" for k in range(20))
    words = said(plain(), replace(found, label_names=names, **wide))
    assert "n4, n5, n6, n7, n8, n9, n10, n11 and 8 more." in words[0]


@pytest.mark.parametrize(
    ("saved", "how"),
    [
        (fitted(), "calibrate=True"),
        (plain(), "training.calibrate=true"),
        (fitted(calibrate=True), None),
        (Predictor.of(LMBMClassifier(random_state=0).fit(X, Y)), "calibrate=True"),
    ],
)
def test_to_calibrate_is_said_where_probabilities_are_clearly_off(saved, how):
    found = good()
    sure = replace(found, probability=found.joint.double())
    words = said(saved, sure)
    assert [how in each for each in words] == ([] if how is None else [True])
    # Of few rows that much may be chance.
    few = slice(0, 8)
    parts = {name: getattr(sure, name)[few] for name in ("truth", "joint", "alone", "probability", "exact")}
    parts["truth"] = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]] * 4)
    parts["joint"] = parts["truth"].clone()
    parts["probability"] = 0.25 + 0.5 * parts["truth"].double()
    assert not any("calibrat" in each for each in said(saved, replace(sure, **parts)))


@pytest.mark.parametrize(
    ("values", "edge"), [([1e-5, 0.5], "largest"), ([0.5, 1e5], "smallest"), ([1e-5, 0.5, 1e5], None)]
)
def test_a_C_at_the_edge_of_what_was_searched_is_said(values, edge, monkeypatch):
    scores = {value: float(value == 0.5) for value in values}
    monkeypatch.setattr(LMSBNClassifier, "score", lambda self, X, y: scores[self.C])
    chosen = LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=values, cv=2, random_state=0).fit(X, Y)
    assert chosen.C_ == 0.5
    assert chosen.C_edge_ == edge
    words = said(Predictor.of(chosen.estimator_), good())
    assert len(words) == (edge is not None)
    if edge is not None:
        further = {"largest": "larger", "smallest": "smaller"}[edge]
        assert f"C = 0.5 is the {edge} value that was searched: search {further} ones" in words[0]


def test_of_a_single_C_there_is_no_edge():
    chosen = LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=[1.0], cv=2, random_state=0).fit(X, Y)
    assert chosen.C_edge_ is None


def test_a_multiple_of_scale_at_the_edge_is_named():
    saved = fitted(C="100.0*scale")
    saved.estimator.C_edge_ = "largest"
    assert any(each.startswith("C = 100.0*scale is the largest") for each in said(saved, good()))


def test_answers_without_proof_are_counted_with_what_proves_them():
    exact = torch.arange(ROWS) >= 3
    (words,) = said(fitted(), replace(good(), exact=exact))
    assert words.startswith("3 of 400 answers are not proven optimal: search longer")
    decoder = MatchedInference(mean_field.marginals, 5).decode
    approximate = replace(plain(), estimator=replace(plain().estimator, decoder=decoder))
    (words,) = said(approximate, replace(good(), exact=exact))
    assert "--most-probable" in words
