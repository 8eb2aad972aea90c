"""Models and losses recorded by ``make_fx``: what was recorded computes and refuses as they do."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from devices.compiled import GRAPHS, REFUSED


def seeded(function, tensors):
    torch.manual_seed(0)
    return function(*tensors)


@pytest.mark.parametrize("name", GRAPHS)
def test_losses_and_scores_are_recorded(name):
    _, function, tensors = GRAPHS[name]()
    recorded = make_fx(function)(*tensors)
    torch.testing.assert_close(seeded(recorded, tensors), seeded(function, tensors))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_by_what_was_recorded(name):
    make, wanted = REFUSED[name]
    _, function, (features, labels) = make()
    recorded = make_fx(function)(features.nan_to_num(), labels.nan_to_num().clamp(max=1))
    with pytest.raises(RuntimeError, match=wanted):
        recorded(features, labels)
