"""The device of an energy is that of its results, whatever ``torch.set_default_device`` names."""

from __future__ import annotations

import torch

from contracts.results import assert_same, tensors_of
from contracts.routines import every_row
from contracts.rows import Row


@every_row
def test_a_default_device_is_not_used(row: Row):
    energy, generator = row.kind.plain, torch.Generator
    given = {"generator": generator("cpu").manual_seed(0)} if row.is_random else {}
    # Of the default device first: what is kept between calls may be made by this one.
    with torch.device("meta"):
        result = row.function(energy, **row.settings, **given)
    assert_same(tensors_of(result), row(energy), **row.limits)
