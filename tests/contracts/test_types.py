"""Results have the fields, shapes, dtypes and device that their type promises, in both precisions."""

from __future__ import annotations

import pytest
import torch

from contracts.kinds import with_tensors
from contracts.results import assert_same, tensors_of
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


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_row
def test_results_are_on_the_device_of_the_energy(row):
    for case in row.few_cases():
        energy = with_tensors(case.energy, lambda name, tensor: tensor.cuda())
        came = row(energy, None if case.known is None else case.known.cuda())
        assert {tensor.device for tensor in came.values()} == {next(iter(tensors_of(energy).values())).device}
        if not row.is_random:
            apart = row.kind.rounded.union(row.incidental)
            on_cpu = {name: tensor.cpu() for name, tensor in came.items()}
            assert_same(on_cpu, case.result, apart=apart, rtol=1e-6, atol=1e-5 if row.limits else 1e-6)
