"""Every routine of inference with tensors of a device: nothing of the host among them, and the CPU's answers."""

from __future__ import annotations

import pytest
import torch
from contracts.kinds import CHAINS, SEQUENTIAL
from contracts.results import assert_same, tensors_of
from contracts.routines import rows_that

from devices.accelerator import Accelerator, OnDevice, here

HAVE_NO_TENSORS = (SEQUENTIAL, CHAINS)


@rows_that(lambda row: row.kind not in HAVE_NO_TENSORS)
def test_routines(row):
    for case in row.few_cases():
        with Accelerator() as gpu:
            came = row(gpu.put(case.energy), gpu.put(case.known))
        assert gpu.violations == []
        assert {name for name, tensor in came.items() if not isinstance(tensor, OnDevice)} == set()
        if not row.is_random:
            apart = row.kind.rounded.union(row.incidental)
            assert_same(here(came), case.result, apart=apart, rtol=1e-6, atol=1e-5 if row.limits else 1e-6)
