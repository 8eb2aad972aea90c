"""Examples do not know of each other, and the same call gives the same answer."""

from __future__ import annotations

import torch

from contracts.results import along, assert_same
from contracts.routines import every_row, rows_that
from contracts.rows import Row


def of_example(row: Row, name: str, tensor: torch.Tensor, example: int) -> torch.Tensor:
    return along(row.schema[name], tensor, "batch", lambda t, dim: t.narrow(dim, example, 1))


@rows_that(lambda row: not row.is_random)
def test_a_batch_of_one_is_a_row_of_many(row):
    apart = frozenset({*row.incidental, *row.shared, *(row.kind.shared if row.proven else ())})
    for case in row.each_form():
        parts = []
        for example in range(row.kind.sizes(case.energy)["batch"]):
            rows = slice(example, example + 1)
            known = None if case.known is None else case.known[rows]
            parts.append(row(row.kind.select(case.energy, rows), known))
        for name, described in row.schema.items():
            if "batch" not in described.axes and name in case.result:
                # What has no example's axis is summed over them.
                torch.testing.assert_close(sum(part[name] for part in parts), case.result[name])
                parts = [{**part, name: case.result[name]} for part in parts]
        for example, part in enumerate(parts):
            expected = {name: of_example(row, name, t, example) for name, t in case.result.items()}
            assert_same(part, expected, apart=apart, **row.limits)


@every_row
def test_the_same_call_gives_the_same_answer(row):
    for case in row.few_cases():
        again = row(case.energy, case.known)
        assert all(torch.equal(again[name], case.result[name]) for name in case.result)


@rows_that(lambda row: row.is_random)
def test_other_seeds_give_other_answers(row):
    first, other = row(row.kind.large, seed=0), row(row.kind.large, seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)
