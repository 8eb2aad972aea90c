"""Waits for a device and launches on it, in a step of training and in an iteration of inference."""

from __future__ import annotations

import pytest
import torch

from devices.accelerator import DEVICE, Accelerator
from devices.ceilings import LOOPS, STEPS
from devices.steps import STEPS as ALL_STEPS
from devices.steps import prepared, train

ITERATIONS = 16


def test_every_step_has_a_ceiling():
    assert STEPS.keys() == ALL_STEPS.keys()


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_training(name):
    step = ALL_STEPS[name]
    with Accelerator() as gpu:
        module, batch = prepared(step, DEVICE), gpu.put(step.batch)
        train(module, batch)
        gpu.forget()
        train(module, batch)
    assert gpu.waits.total() <= STEPS[name].waits, gpu.waits
    assert gpu.launches.total() <= STEPS[name].launches
    # What the host knows is on the device from the first step on.
    assert gpu.uploads.total() == 0, gpu.uploads


def counts(loop, iterations):
    energy = loop.energy(iterations)
    with Accelerator() as gpu:
        torch.manual_seed(0)
        loop.call(gpu.put(energy), iterations)
    return gpu


@pytest.mark.parametrize("name", LOOPS)
def test_iterations(name):
    few, many = (counts(LOOPS[name], times * ITERATIONS) for times in (1, 2))
    cost = LOOPS[name].cost
    assert many.launches.total() > few.launches.total()
    assert (many.waits.total() - few.waits.total()) / ITERATIONS <= cost.waits, many.waits
    assert (many.launches.total() - few.launches.total()) / ITERATIONS <= cost.launches
