"""Labels that are known come back as they are, and nothing known is the same as all of it missing."""

from __future__ import annotations

import pytest
import torch

from contracts.results import assert_same
from contracts.routines import rows_that

takes_known = rows_that(lambda row: "known" in row.takes)
STRANGE = (
    torch.zeros(3, 5),
    torch.zeros(2, 4),
    torch.full((3, 4), 0.5),
    torch.full((3, 4), -1),
    torch.full((3, 4), torch.inf),
    torch.zeros(3, 4, device="meta"),
)


@takes_known
def test_known_labels_are_kept(row):
    for case in row.cases():
        if case.known is None:
            continue
        is_given = ~case.known.isnan()
        for name, tensor in case.result.items():
            content, axes = row.schema[name]
            if content in ("label", "probability") and axes == ("batch", "labels"):
                torch.testing.assert_close(tensor[is_given].to(case.known.dtype), case.known[is_given])


@takes_known
def test_whole_numbers_are_known_labels_too(row):
    for case in row.few_cases():
        if case.known is not None:
            whole = case.known.nan_to_num().long()
            assert_same(row(case.energy, whole), row(case.energy, whole.to(case.known.dtype)))


@takes_known
def test_nothing_known_is_all_missing(row):
    for case in row.few_cases():
        if case.known is None:
            given = torch.full_like(row.kind.known(case.form), torch.nan)
            assert_same(row(case.energy, given), {n: t.detach() for n, t in case.result.items()})


@takes_known
def test_refuses_strange_known(row):
    for known in STRANGE:
        with pytest.raises(ValueError, match=r"^known: expected"):
            row(row.kind.plain, known)
