"""How kernels are compiled: parts of them, and the garbage collector meanwhile."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("numba")
from lmbm_torch.extras import uncollected
from lmbm_torch.kernels.jit import njit, part


@part
def twice(number):
    return 2 * number


@njit
def four_times(number):
    return twice(twice(number))


def test_a_part_is_called_from_compiled_code_alone():
    with pytest.raises(TypeError, match="twice: expected a call from compiled code"):
        twice(1.5)
    assert four_times(1.5) == 6.0
    # Its code for these types is there now, but nothing to enter it by.
    with pytest.raises(TypeError, match="twice: expected a call from compiled code"):
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


def test_what_was_made_uncollected_is_looked_through_by_full_passes_alone():
    # Commands that ran in this process before have frozen their objects.
    gc.unfreeze()
    with uncollected():
        made = [[] for _ in range(1000)]
    assert gc.get_freeze_count() == 0
    old = {id(each) for each in gc.get_objects(2)}
    assert {id(each) for each in made} <= old


def test_what_the_caller_has_frozen_stays_frozen():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with uncollected():
            pass
        # Few frozen objects may have died of themselves in between; a thaw leaves none.
        assert count - 100 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_what_compiled_parts_raise_arrives():
    @part
    def root(number):
        if number < 0:
            raise ValueError("expected a square, got", number)
        return number**0.5

    @njit
    def fourth_root(number):
        return root(root(number))

    assert fourth_root(16.0) == 2.0
    with pytest.raises(ValueError, match="expected a square") as raised:
        fourth_root(-4.0)
    assert raised.value.args[1] == -4.0
