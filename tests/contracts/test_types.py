"""Results have the fields, shapes, dtypes and device that their type promises, in both precisions."""

from __future__ import annotations

import torch

from contracts.results import assert_same
from contracts.routines import every_row, rows_that


@every_row
def test_shapes_dtypes_and_devices(row):
    for dtype in (torch.float32, torch.float64):
        for case in row.cases(dtype):
            sizes = {**row.kind.sizes(case.energy), "samples": row.settings.get("num_samples")}
            for name, tensor in case.result.items():
                described = row.schema[name]
                wanted = [
                    sizes.get(axis) or size if axis != "steps" else sizes[axis]
                    for axis, size in zip(described.axes, tensor.shape, strict=True)
                ]
                assert (name, tensor.dtype, [*tensor.shape]) == (name, described.dtype(dtype), wanted)
                assert tensor.device.type == "cpu"


@rows_that(lambda row: not row.is_random)
def test_single_precision_is_near_double(row):
    apart = row.kind.rounded.union(row.incidental)
    for fine, coarse in zip(row.cases(), row.cases(torch.float32), strict=True):
        expected = {name: tensor.to(coarse.result[name].dtype) for name, tensor in fine.result.items()}
        assert_same(coarse.result, expected, apart=apart, rtol=1e-4, atol=1e-5)
