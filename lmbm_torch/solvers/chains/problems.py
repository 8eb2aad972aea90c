"""Max-margin Markov networks of chains, with their weights at hand: for block-coordinate Frank–Wolfe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference import chain_dp
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural.problems import CuttingPlanes, Maximisers, StructuralProblem


def chain_problem(
    features: Features,
    labels: np.ndarray,
    start: Sequence[int] | np.ndarray,
    *,
    num_states: int,
    C: float = 1.0,
    sample_weight: np.ndarray | None = None,
    coupling_penalty: float = 1.0,
) -> StructuralProblem:
    """score(x, y) = Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}, Δ Hamming's, ½‖w‖² + C Σ hinge.

    max_margin_markov_networks_survey_2003, Equation 37, with its C being n times this one. Chains of one
    position are the multi-class SVM of Crammer and Singer.

    Args:
        features: (positions, features), float32 or float64, dense or CSR, one chain after another.
        labels: (positions,), states.
        start: (chains + 1,), where each chain's positions begin.
        num_states: S.
        C: the losses' weight; biases are regularised like other weights.
        sample_weight: (chains,), multiplies C.
        coupling_penalty: η, multiplies the transitions' squares.

    Raises:
        ValueError: labels that are no states or of another shape; and as
            :meth:`StructuralProblem.from_rows`.
        TypeError: features that are neither float32 nor float64.
    """
    labels = checked_states(labels, features.shape[0], num_states)  # pyright: ignore[reportOptionalSubscript]
    return StructuralProblem.from_rows(
        features,
        ChainOracle(labels, np.asarray(start, np.int64), num_states),
        num_outputs=num_states,
        num_couplings=num_states**2,
        start=start,
        C=C,
        sample_weight=sample_weight,
        coupling_penalty=coupling_penalty,
    )


def checked_states(labels: np.ndarray, positions: int, num_states: int) -> np.ndarray:
    """Labels as int64; refuses what is no state."""
    check_count("num_states", num_states)
    labels = np.asarray(labels)
    check_shape("labels", labels, positions)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels: expected integers, got {labels.dtype}")
    if not 0 <= labels.min() <= labels.max() < num_states:
        raise ValueError(f"labels: expected 0 to {num_states - 1}, got {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


@dataclass(frozen=True)
class ChainOracle:
    """Loss-augmented Viterbi decoding, all chains that are asked for at once.

    Args:
        labels: (positions,), the true ones.
        start: (chains + 1,).
        num_states: S.
    """

    labels: np.ndarray
    start: np.ndarray
    num_states: int

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """The maximisers of Δ + score."""
        lengths = np.diff(self.start)[examples]
        truth = self._truths(examples)
        augmented = scores.astype(np.float64) + 1
        augmented[np.arange(len(truth)), truth] -= 1
        energy = padded_chains(augmented, couplings.reshape(self.num_states, -1), lengths)
        found = chain_dp.decode(energy)
        inside = energy.inside.numpy()
        labels = np.zeros(inside.shape, np.int64)
        labels[inside] = truth
        bound = found.objective - energy.score(torch.from_numpy(labels))
        return Maximisers(self.planes(examples, found.labels.numpy()[inside]), bound.numpy())

    def planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        """One plane for each of ``examples`` (planes,), ascending, from labellings one after another."""
        lengths = np.diff(self.start)[examples]
        truth, size = self._truths(examples), self.num_states
        plane = np.repeat(np.arange(len(examples)), lengths)
        position = np.arange(len(plane)) - np.repeat(lengths.cumsum() - lengths, lengths)
        steps = np.flatnonzero(plane[1:] == plane[:-1])
        # Unary entries first, then couplings, both counted from 0 in a plane's own range.
        width = int(lengths.max()) * size + size**2
        offset = width - size**2
        keys, values = [], []
        for each, sign in ((truth, 1.0), (labels, -1.0)):
            keys += [plane * width + position * size + each]
            keys += [plane[steps] * width + offset + each[steps] * size + each[steps + 1]]
            values += [np.full(len(plane) + len(steps), sign)]
        entries, where = np.unique(np.concatenate(keys), return_inverse=True)
        value = np.bincount(where, np.concatenate(values))
        entries, value = entries[value != 0], value[value != 0]
        place = entries % width
        index = np.where(place < offset, place, offset - 1 - place)
        begins = np.searchsorted(entries // width, np.arange(len(examples) + 1))
        loss = np.bincount(plane, truth != labels, len(examples)).astype(np.float64)
        return CuttingPlanes(examples, loss, begins, index.astype(np.int32), value)

    def _truths(self, examples: np.ndarray) -> np.ndarray:
        return np.concatenate([self.labels[slice(*self.start[each : each + 2])] for each in examples])


def padded_chains(scores: np.ndarray, transition: np.ndarray, lengths: np.ndarray) -> ChainEnergy:
    """Chains of (positions, states) one after another, with padding, in float64."""
    inside = np.arange(lengths.max()) < lengths[:, None]
    unary = np.zeros((*inside.shape, scores.shape[1]))
    unary[inside] = scores
    parts = map(torch.from_numpy, (unary, np.ascontiguousarray(transition), np.asarray(lengths, np.int64)))
    return ChainEnergy(*parts)
