"""The iterations of ``matrix_bp.py`` in PyTorch, in NumPy and in PGMax."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import seconds
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy

CHUNKS = (1, 4, 16, 64)
# Rows of a block in NumPy: what is alive of it fits a core's cache.
BLOCK_BYTES = 2**18


def iteration(
    odds: Tensor, hidden_fields: Tensor, visible: Tensor, hidden: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Algorithm 1's loop body, for the messages to the hidden units as odds."""
    own, rest = torch.sigmoid(hidden_fields)[:, None], torch.sigmoid(-hidden_fields)[:, None]
    other = odds * rest
    answers = (other + weight * own) / (other + own)
    visible_fields = visible + answers.log().sum(2)
    own, rest = torch.sigmoid(visible_fields)[..., None], torch.sigmoid(-visible_fields)[..., None]
    other = answers * rest
    odds = (other + weight * own) / (other + own)
    return odds, hidden + odds.log().sum(1), visible_fields


@torch.no_grad()
def torch_beliefs(step: Callable, energy: BipartiteEnergy, num_iters: int, chunk: int) -> list[Tensor]:
    """Return marginals of the visible units, ``chunk`` instances at a time."""
    weight = energy.coupling.exp()
    found = []
    for first in range(0, energy.batch_size, chunk):
        part = energy.select(slice(first, first + chunk))
        odds = torch.ones_like(weight).repeat(part.batch_size, 1, 1)
        fields, visible_fields = part.hidden, part.visible
        for _ in range(num_iters):
            odds, fields, visible_fields = step(odds, fields, part.visible, part.hidden, weight)
        found.append(torch.sigmoid(visible_fields))
    return found


def best_chunk(step: Callable, energy: BipartiteEnergy) -> int:
    """Return how many instances at a time suit a peer, judged by a few iterations."""
    few = energy.select(slice(0, max(CHUNKS)))
    chunks = [chunk for chunk in CHUNKS if chunk <= few.batch_size]
    for chunk in chunks:
        torch_beliefs(step, few, 2, chunk)
    return min(
        chunks, key=lambda chunk: min(seconds(partial(torch_beliefs, step, few, 2, chunk)) for _ in range(3))
    )


def numpy_beliefs(energy: BipartiteEnergy, num_iters: int, tol: float | None = None) -> tuple[list, int]:
    """Return NumPy's beliefs, both halves of an iteration block by block, and the number of iterations.

    With ``tol`` they end once no message changes by a larger factor than 1 + tol.
    """
    weight = np.exp(energy.coupling.numpy())
    rows = max(1, BLOCK_BYTES // weight[0].nbytes)
    found, made = [], 0
    for visible, hidden in zip(energy.visible.numpy(), energy.hidden.numpy(), strict=True):
        odds, fields = np.ones_like(weight), hidden
        probabilities = np.empty_like(visible)
        for _ in range(num_iters):
            own, rest = 1 / (1 + np.exp(-fields)), 1 / (1 + np.exp(fields))
            total, change = np.zeros_like(hidden), 0.0
            for first in range(0, len(weight), rows):
                part = slice(first, first + rows)
                change = max(
                    change, _numpy_block(odds, weight, visible, own, rest, total, probabilities, part, tol)
                )
            fields = hidden + total
            made += 1
            if tol is not None and change <= tol:
                break
        found.append(probabilities)
    return found, made


def _numpy_block(odds, weight, visible, own, rest, total, probabilities, part, tol) -> float:
    other = odds[part] * rest
    below = other + own
    answers = weight[part] * own
    answers += other
    answers /= below
    fields = visible[part] + np.log(answers).sum(1)
    probabilities[part] = 1 / (1 + np.exp(-fields))
    visible_own, visible_rest = probabilities[part, None], 1 / (1 + np.exp(fields))[:, None]
    answers *= visible_rest
    np.add(answers, visible_own, out=below)
    answers += weight[part] * visible_own
    answers /= below
    total += np.log(answers).sum(0)
    change = float(np.abs(answers / odds[part] - 1).max()) if tol is not None else math.inf
    odds[part] = answers
    return change


def pgmax_beliefs(energy: BipartiteEnergy, num_iters: int, python: str) -> tuple[np.ndarray, Tensor]:
    """Return PGMax's seconds of five repeats in the interpreter ``python``, and the visible log-odds.

    The log-odds are those after ten times as many iterations, since PGMax has another schedule.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "energy.npz"), Path(folder, "beliefs.npz")
        np.savez(
            source,
            visible=energy.visible[0].numpy(),
            hidden=energy.hidden[0].numpy(),
            coupling=energy.coupling.numpy(),
        )
        peer = Path(__file__).with_name("pgmax_peer.py")
        subprocess.run([python, peer, source, target, str(num_iters), "5"], check=True)
        with np.load(target) as beliefs:
            return beliefs["seconds"], torch.from_numpy(beliefs["later"])
