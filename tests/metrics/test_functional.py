from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lmbm_torch import metrics

EVERY = (
    metrics.exact_match,
    metrics.hamming_loss,
    metrics.sample_f1,
    metrics.macro_f1,
    metrics.micro_f1,
    metrics.jaccard_index,
    metrics.precision,
    metrics.recall,
    metrics.functional.f_of_averages,
)


@st.composite
def label_pairs(draw):
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 5)))
    labels = arrays(np.int64, shape, elements=st.integers(0, 1))
    return draw(labels), draw(labels)


def as_sklearn_sees(labels):
    """A zero column changes no metric used below, and keeps one label from looking like a binary problem."""
    return np.pad(labels, ((0, 0), (0, 1)))


@given(label_pairs())
@settings(max_examples=60)
def test_scikit_learn_agrees(pair):
    preds, target = pair
    tensors = torch.from_numpy(preds), torch.from_numpy(target)
    p, t = as_sklearn_sees(preds), as_sklearn_sees(target)
    per_label = [
        reference.f1_score(target[:, k], preds[:, k], zero_division=0) for k in range(target.shape[1])
    ]
    by_sample = {"average": "samples"}
    expected = {
        metrics.exact_match: reference.accuracy_score(t, p),
        metrics.hamming_loss: np.mean(preds != target),
        metrics.sample_f1: reference.f1_score(t, p, zero_division=1, **by_sample),
        metrics.macro_f1: np.mean(per_label),
        metrics.micro_f1: reference.f1_score(t, p, average="micro", zero_division=0),
        metrics.jaccard_index: reference.jaccard_score(t, p, zero_division=1, **by_sample),
        metrics.precision: reference.precision_score(t, p, zero_division=0, **by_sample),
        metrics.recall: reference.recall_score(t, p, zero_division=0, **by_sample),
    }
    for metric, value in expected.items():
        assert metric(*tensors).item() == pytest.approx(value, abs=1e-6), metric.__name__


@given(label_pairs())
@settings(max_examples=60)
def test_skipping_leaves_undefined_instances_out(pair):
    preds, target = pair
    tensors = torch.from_numpy(preds), torch.from_numpy(target)
    for metric, denominator in ((metrics.precision, preds), (metrics.recall, target)):
        kept = denominator.any(1)
        skipped = metric(*tensors, zero_division=math.nan)
        if kept.any():
            assert skipped == metric(*(tensor[torch.from_numpy(kept)] for tensor in tensors))
        else:
            assert skipped.isnan()


def test_published_averages_give_the_published_f():
    """large_margin_boltzmann_machines_2009, Scene, the row of LMBM: P .782 and R .605 stand beside F .682."""
    value = metrics.functional.harmonic_mean(torch.tensor(0.782), torch.tensor(0.605))
    assert value.item() == pytest.approx(0.682, abs=5e-4)


def test_conventions_of_the_undefined_ratio():
    preds = torch.tensor([[1, 0], [0, 0], [0, 0]])
    target = torch.tensor([[1, 1], [0, 0], [0, 1]])
    assert metrics.sample_f1(preds, target).item() == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert metrics.jaccard_index(preds, target).item() == pytest.approx((1 / 2 + 1 + 0) / 3)
    for zero_division, precision, recall in ((0.0, 1 / 3, 1 / 6), (1.0, 1.0, 1 / 2), (math.nan, 1.0, 1 / 4)):
        assert metrics.precision(preds, target, zero_division).item() == pytest.approx(precision)
        assert metrics.recall(preds, target, zero_division).item() == pytest.approx(recall)
        f_score = 2 * precision * recall / (precision + recall)
        assert metrics.functional.f_of_averages(preds, target, zero_division).item() == pytest.approx(f_score)


def test_nothing_right_is_zero_and_nothing_to_average_is_nan():
    ones, zeros = torch.ones(2, 3), torch.zeros(2, 3)
    assert metrics.functional.f_of_averages(zeros, ones) == 0
    assert metrics.functional.f_of_averages(zeros, ones, math.nan).isnan()


@pytest.mark.parametrize("metric", EVERY)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.float64])
def test_any_dtype_gives_the_same_and_arguments_stay(metric, dtype):
    generator = torch.Generator().manual_seed(0)
    preds, target = torch.randint(0, 2, (2, 9, 4), generator=generator)
    typed = preds.to(dtype), target.to(dtype)
    assert metric(*typed) == metric(preds, target)
    assert torch.equal(typed[0], preds.to(dtype))
    assert torch.equal(typed[1], target.to(dtype))


@pytest.mark.parametrize("metric", EVERY)
def test_arrays_give_what_tensors_give(metric):
    generator = torch.Generator().manual_seed(0)
    preds, target = torch.randint(0, 2, (2, 9, 4), generator=generator)
    assert metric(preds.numpy(), target.double().numpy()) == metric(preds, target)


def test_missing_targets_are_ignored():
    preds = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]])
    target = np.array([[1, np.nan, 1], [0, 1, np.nan], [np.nan, np.nan, np.nan]])
    found = {metric.__name__: metric(preds, target).item() for metric in EVERY}
    assert found == pytest.approx(
        {
            "exact_match": 1 / 2,
            "hamming_loss": 1 / 4,
            "sample_f1": (1 + 2 / 3) / 2,
            "macro_f1": (2 / 3 + 1 + 1) / 3,
            "micro_f1": 6 / 7,
            "jaccard_index": (1 + 1 / 2) / 2,
            "precision": (1 + 1 / 2) / 2,
            "recall": 1,
            "f_of_averages": 2 * 0.75 / 1.75,
        }
    )


def test_without_known_targets_there_is_no_average():
    preds, target = torch.ones(2, 2), torch.full((2, 2), math.nan)
    assert metrics.sample_f1(preds, target).isnan()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("metric", EVERY)
@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (torch.tensor([[math.nan, 1.0]]), torch.ones(1, 2), "preds: expected 0 or 1"),
        (torch.tensor([[0.3, 1.0]]), torch.ones(1, 2), "preds: expected 0 or 1"),
        (torch.ones(1, 2), torch.tensor([[2, 1]]), "target: expected 0, 1 or NaN"),
        (torch.ones(2, 2), torch.ones(2, 3), "target: expected shape"),
        (torch.ones(2), torch.ones(2), "preds: expected shape"),
        (torch.tensor(1), torch.tensor(1), "preds: expected shape"),
        (torch.ones(0, 2), torch.ones(0, 2), "preds: expected shape"),
    ],
)
def test_bad_input_is_refused(metric, preds, target, message):
    with pytest.raises(ValueError, match=message):
        metric(preds, target)


@pytest.mark.parametrize("metric", [metrics.precision, metrics.recall, metrics.functional.f_of_averages])
def test_strange_zero_division_is_refused(metric):
    with pytest.raises(ValueError, match="zero_division: expected 0, 1 or NaN"):
        metric(torch.ones(1, 2), torch.ones(1, 2), zero_division=0.5)
