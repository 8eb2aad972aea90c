from __future__ import annotations

import math

import torch

from lmbm_torch import metrics

NAMES = [
    "exact_match",
    "f_of_averages",
    "f_of_averages_skipped",
    "hamming_loss",
    "jaccard_index",
    "macro_f1",
    "micro_f1",
    "precision",
    "precision_skipped",
    "recall",
    "recall_skipped",
    "sample_f1",
]


def by_functions(preds, target):
    plain = {
        name: getattr(metrics.functional, name)(preds, target)
        for name in NAMES
        if not name.endswith("_skipped")
    }
    skipped = {
        f"{name}_skipped": getattr(metrics.functional, name)(preds, target, zero_division=math.nan)
        for name in ("precision", "recall", "f_of_averages")
    }
    return plain | skipped


def test_names_and_values():
    generator = torch.Generator().manual_seed(1)
    preds, target = (torch.rand(2, 30, 4, generator=generator) < 0.3).int()
    values = metrics.multilabel_metrics(4)(preds, target)
    expected = by_functions(preds, target)
    assert sorted(values) == sorted(expected) == NAMES
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value)


def test_a_perfect_first_batch_merges_nothing():
    """torchmetrics' automatic groups would give several averages one value from here on."""
    collection = metrics.multilabel_metrics(3, prefix="val/")
    first = torch.ones(4, 3)
    second = torch.tensor([[1, 0, 0], [0, 0, 0]]), torch.tensor([[1, 1, 0], [0, 1, 1]])
    collection.update(first, first)
    collection.update(*second)
    expected = by_functions(torch.cat([first, second[0]]), torch.cat([first, second[1]]))
    for name, value in collection.compute().items():
        torch.testing.assert_close(value, expected[name.removeprefix("val/")])


def test_every_value_is_perfect_for_perfect_predictions():
    labels = torch.tensor([[1, 0], [0, 1]])
    values = metrics.multilabel_metrics(2)(labels, labels)
    assert values.pop("hamming_loss") == 0
    assert all(value == 1 for value in values.values())
