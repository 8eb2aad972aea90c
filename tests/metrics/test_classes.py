from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmbm_torch import metrics
from lmbm_torch.metrics import classes, functional
from lmbm_torch.metrics.classes import MissingTargets

NAN = {"zero_division": math.nan}
AVERAGES = classes._InstanceAverages
PRECISION, RECALL = functional.precision_ratio, functional.recall_ratio


def average(*ratios, zero_division=0.0):
    """A metric of the averages of some ratios."""
    return lambda num_labels, **kwargs: AVERAGES(
        num_labels, *ratios, **{"zero_division": zero_division, **kwargs}
    )


TWINS = [
    (classes._ExactMatch, metrics.exact_match, {}),
    (partial(classes._HammingLoss, average="micro"), metrics.hamming_loss, {}),
    (average(functional.f1_ratio, zero_division=1.0), metrics.sample_f1, {}),
    (partial(classes._F1, average="macro"), metrics.macro_f1, {}),
    (partial(classes._F1, average="micro"), metrics.micro_f1, {}),
    (average(functional.jaccard_ratio, zero_division=1.0), metrics.jaccard_index, {}),
    (average(PRECISION), metrics.precision, {}),
    (average(PRECISION), metrics.precision, NAN),
    (average(RECALL), metrics.recall, {}),
    (average(RECALL), metrics.recall, NAN),
    (average(PRECISION, RECALL), metrics.functional.f_of_averages, {}),
    (average(PRECISION, RECALL), metrics.functional.f_of_averages, NAN),
]


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(3)
    preds, target = torch.rand(2, 40, 5, generator=generator) < 0.25
    return preds.float(), target.float()


def in_parts(metric, pair, cuts):
    bounds = [0, *sorted(cuts), len(pair[0])]
    for start, stop in itertools.pairwise(bounds):
        if start < stop:
            metric.update(pair[0][start:stop], pair[1][start:stop])
    return metric


@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
@given(cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_parts_give_what_the_function_gives_at_once(cls, function, options, cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    pair = tuple((torch.rand(2, 40, 5, generator=generator) < 0.25).long())
    metric = in_parts(cls(5, **options), pair, cuts)
    torch.testing.assert_close(metric.compute(), function(*pair, **options), equal_nan=True)


@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
def test_parts_with_missing_targets_give_what_the_function_gives(cls, function, options, pair):
    preds, target = pair[0].numpy(), pair[1].numpy().copy()
    target[np.random.default_rng(0).random(target.shape) < 0.4] = np.nan
    target[3] = np.nan
    metric = in_parts(cls(5, **options), (preds, target), [3, 4, 20])
    torch.testing.assert_close(metric.compute(), function(preds, target, **options))
    counted = in_parts(MissingTargets(5), (preds, target), [3, 4, 20])
    assert counted.compute() == np.isnan(target).sum()


@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
def test_states_of_two_processes_merge(cls, function, options, pair):
    here, there = cls(5, **options), cls(5, **options)
    here.update(pair[0][:7], pair[1][:7])
    there.update(pair[0][7:], pair[1][7:])
    here.merge_state(there)
    torch.testing.assert_close(here.compute(), function(*pair, **options))


@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
def test_synchronisation_sums_over_processes(cls, function, options, pair):
    """torchmetrics' own reduction, with the other process's state supplied by hand instead of by gloo."""
    there = in_parts(cls(5, **options), pair, []).metric_state
    states = iter(there.values())
    here = cls(
        5,
        **options,
        dist_sync_fn=lambda state, group: [state, next(states)],
        distributed_available_fn=lambda: True,
    )
    here.update(torch.zeros(6, 5), torch.ones(6, 5))
    both = torch.cat([pair[0], torch.zeros(6, 5)]), torch.cat([pair[1], torch.ones(6, 5)])
    torch.testing.assert_close(here.compute(), function(*both, **options))


@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
def test_reset_forgets(cls, function, options, pair):
    metric = cls(5, **options)
    metric.update(1 - pair[0], pair[1])
    metric.reset()
    metric.update(*pair)
    torch.testing.assert_close(metric.compute(), function(*pair, **options))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(("cls", "function", "options"), TWINS)
def test_bad_input_is_refused_and_leaves_the_state(cls, function, options, pair):
    metric = cls(5, **options)
    metric.update(*pair)
    before = metric.compute()
    for preds, message in (
        (torch.full((40, 5), math.nan), "preds: expected 0 or 1"),
        (torch.full((40, 5), 0.7), "preds: expected 0 or 1"),
        (torch.ones(40, 4), "preds: expected shape"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.update(preds, pair[1])
    metric.update(*pair)
    assert metric.compute() == before


def test_strange_zero_division_is_refused():
    with pytest.raises(ValueError, match="zero_division: expected 0, 1 or NaN"):
        AVERAGES(3, PRECISION, zero_division=-1.0)


@pytest.mark.cuda
def test_states_follow_to_the_device(pair):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for cls, function, options in TWINS:
        metric = cls(5, **options).cuda()
        metric.update(pair[0].cuda(), pair[1].cuda())
        torch.testing.assert_close(metric.compute().cpu(), function(*pair, **options))
