"""How kernels are compiled: parts of them, and the garbage collector meanwhile."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("numba")
from lmbm_torch.backends.jit import njit, part
from lmbm_torch.backends.uncollected import uncollected


@part
def twice(number):
    return 2 * number


@njit
def four_times(number):
    return twice(twice(number))


def test_a_part_is_called_from_compiled_code_alone():
    with pytest.raises(TypeError, match="twice: called from compiled code alone"):
        twice(1.5)
    assert four_times(1.5) == 6.0
    # Its code for these types is there now, but nothing to enter it by.
    with pytest.raises(TypeError, match="twice: called from compiled code alone"):
        twice(1.5)


def test_nothing_is_collected_while_a_kernel_compiles_and_all_is_afterwards():
    seen = []

    def note(phase, _):
        seen.append(phase)

    @njit
    def total(numbers):
        sum_so_far = 0.0
        for number in numbers:
            sum_so_far += number
        return sum_so_far

    numbers = np.ones(3)
    gc.callbacks.append(note)
    try:
        assert total(numbers) == 3.0
    finally:
        gc.callbacks.remove(note)
    # A compilation makes tens of thousands of objects: a few hundred are what calls around it make.
    assert len(seen) <= 4
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
