"""A thousand batches need no more memory than a hundred."""

from __future__ import annotations

import ctypes
import gc
import os
from functools import cache
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from problems.latent import latent_module
from problems.small import (
    NAMES,
    NUM_FEATURES,
    gradient_module,
    network,
    quiet_trainer,
    served,
    small_data,
)

from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor

FEW, MANY = 100, 1000
# What an interpreter's own allocation comes to; a batch kept each time would be more.
SLACK = 4 * 2**20


def resident() -> int:
    """Bytes that this process holds; what it has freed, which glibc keeps for a while, goes back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_tensors() -> int:
    gc.collect()
    # By their types, since asking what an object is wakes deprecated ones.
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


class Watch(Callback):
    """What is in memory after few batches and after many."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step in (FEW, MANY):
            self.seen.append((num_tensors(), resident()))


@pytest.mark.slow
@pytest.mark.parametrize("make", [gradient_module, latent_module])
def test_training_does_not_grow(tmp_path, make):
    watch = Watch()
    # Twelve batches an epoch, so that many epochs are among them.
    quiet_trainer(tmp_path, MANY // 12 + 1, watch).fit(make(), datamodule=served(small_data(), 5))
    (few_tensors, few_bytes), (many_tensors, many_bytes) = watch.seen
    assert many_tensors == few_tensors
    assert many_bytes - few_bytes < SLACK


def directed(generator):
    unary = torch.randn(20, 8, generator=generator)
    energy = DirectedEnergy(unary, torch.randn(8, 8, generator=generator).tril(-1), torch.arange(8))
    return branch_and_bound.decode_hinge(energy)


def bipartite(generator):
    sides = (torch.randn(20, size, generator=generator, requires_grad=True) for size in (30, 20))
    energy = BipartiteEnergy(*sides, 0.1 * torch.randn(30, 20, generator=generator, requires_grad=True))
    return matrix_bp.marginals(energy, num_iters=5)


@cache
def saved():
    return Predictor.of_model(network().eval(), NAMES, 1.0, None)


def predicted(generator):
    rows = torch.randn(20, NUM_FEATURES, generator=generator, dtype=torch.float64).numpy()
    return list(answers.predict(saved(), rows))


@pytest.mark.slow
@pytest.mark.parametrize("infer", [directed, bipartite, predicted])
def test_inference_does_not_grow(infer):
    generator = torch.Generator().manual_seed(0)
    seen = []
    for batch in range(MANY + 1):
        infer(generator)
        if batch in (FEW, MANY):
            seen.append((num_tensors(), resident()))
    (few_tensors, few_bytes), (many_tensors, many_bytes) = seen
    assert many_tensors == few_tensors
    assert many_bytes - few_bytes < SLACK
