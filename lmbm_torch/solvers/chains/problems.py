"""Training problems of chains: max-margin Markov networks for Frank–Wolfe, and code that solvers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import numpy as np
import torch

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.networks.problems import Features, sample_weights
from lmbm_torch.solvers.structural.problems import CuttingPlanes, LossSettings, Maximisers, StructuralProblem

# Log-potential of forbidden labels and steps: far below any score, but sums stay finite.
FORBIDDEN = -1e30


class AllowedSteps(NamedTuple):
    """Masks of the states that may begin a chain, follow each other, and end a chain.

    Args:
        start: (states,), True for states that may begin a chain.
        steps: (states, states), row: state before the step, column: state after the step.
        end: (states,), True for states that may end a chain.
    """

    start: np.ndarray
    steps: np.ndarray
    end: np.ndarray

    def forbid(
        self, scores: np.ndarray, transition: np.ndarray, lengths: np.ndarray, value: float = FORBIDDEN
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores (positions, states) and the transitions, set to ``value`` where forbidden."""
        ends, scores = lengths.cumsum(), scores.copy()
        scores[ends - lengths] = np.where(self.start, scores[ends - lengths], value)
        scores[ends - 1] = np.where(self.end, scores[ends - 1], value)
        return scores, np.where(self.steps, transition, value)


def allowed_labels(
    labels: np.ndarray, lengths: np.ndarray, allowed: AllowedSteps | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return an allowed labelling of each chain (positions,), and whether the chain has one (chains,).

    Args:
        labels: (positions, states), true for each allowed label of a position.
        lengths: (chains,), the number of positions of each chain.
        allowed: the allowed steps; None if all steps are allowed.
    """
    scores, transition = np.where(labels, 0.0, -np.inf), np.zeros((labels.shape[1],) * 2)
    if allowed is not None:
        scores, transition = allowed.forbid(scores, transition, lengths, -np.inf)
    return _best_paths(scores, transition, lengths)


def chain_problem(
    features: Features,
    labels: np.ndarray,
    start: Sequence[int] | np.ndarray,
    *,
    num_states: int,
    allowed: AllowedSteps | None = None,
    **settings: Unpack[LossSettings],
) -> StructuralProblem:
    """Return the max-margin problem of chains with Hamming loss, ½‖w‖² + C Σ hinge.

    score(x, y) = Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}: max_margin_markov_networks_survey_2003,
    Equation 37, with the paper's C equal to n times ``C``. Chains of one position give the multi-class SVM of
    Crammer and Singer.

    Args:
        features: (positions, features), float32 or float64, dense or CSR, chain after chain.
        labels: (positions,), the true state at each position.
        start: (chains + 1,), first position of each chain.
        num_states: the number of states.
        allowed: the allowed steps, which must include the true steps; None if all steps are allowed.
        settings: see :class:`~lmbm_torch.solvers.structural.problems.LossSettings`.

    Raises:
        ValueError: a label is no state, or ``labels`` have another shape; see also
            :meth:`StructuralProblem.from_rows`.
        TypeError: features are neither float32 nor float64.
    """
    labels = checked_states(labels, features.shape[0], num_states)  # pyright: ignore[reportOptionalSubscript]
    return StructuralProblem.from_rows(
        features,
        ChainOracle(labels, np.asarray(start, np.int64), num_states, allowed),
        num_outputs=num_states,
        num_couplings=num_states**2,
        start=start,
        **settings,
    )


def checked_states(labels: np.ndarray, positions: int, num_states: int) -> np.ndarray:
    """Check labels, and return them as int64.

    Raises:
        ValueError: ``labels`` have another shape than (positions,), are no integers, or not in the range of
            states.
    """
    check_count("num_states", num_states)
    labels = np.asarray(labels)
    check_shape("labels", labels, positions)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels: expected integers, got {labels.dtype}")
    if not 0 <= labels.min() <= labels.max() < num_states:
        raise ValueError(f"labels: expected 0 to {num_states - 1}, got {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


class LabelledChains:
    """Base class for training problems of labelled chains, with any kind of inputs."""

    labels: np.ndarray
    start: np.ndarray
    num_states: int
    C: float
    sample_weight: np.ndarray | None
    allowed: AllowedSteps | None

    def forbidding(self, scores: np.ndarray, transition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores (positions, states) and the transitions, set to ``FORBIDDEN`` where forbidden."""
        if self.allowed is None:
            return scores, transition
        return self.allowed.forbid(scores, transition, self.lengths)

    def _check(self, positions: int) -> None:
        """Check the settings, and convert ``labels`` and ``start`` to arrays."""
        check_positive("C", self.C)
        start = np.array(self.start, np.int64)
        if start.ndim != 1 or start[0] != 0 or start[-1] != positions or (np.diff(start) < 1).any():
            raise ValueError(f"start: expected ascending numbers from 0 to {positions}, got {start.tolist()}")
        labels = checked_states(self.labels, positions, self.num_states)
        upper = self.C * sample_weights(self.sample_weight, len(start) - 1)
        for name, array in {"start": start, "labels": labels, "upper": upper}.items():
            object.__setattr__(self, name, array)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.start)

    @property
    def truth(self) -> np.ndarray:
        """Return the true labels as marginals, (positions, states)."""
        return np.eye(self.num_states)[self.labels]

    @property
    def step_starts(self) -> np.ndarray:
        """Return the positions that are not the last of a chain."""
        return np.delete(np.arange(len(self.labels)), self.start[1:] - 1)

    @property
    def chain(self) -> np.ndarray:
        """Return the index of each position's chain, (positions,)."""
        return np.repeat(np.arange(len(self.start) - 1), self.lengths)


@dataclass(frozen=True)
class ChainOracle:
    """Loss-augmented Viterbi decoding of many chains at once.

    Args:
        labels: (positions,), the true states.
        start: (chains + 1,), first position of each chain.
        num_states: the number of states.
        allowed: the allowed steps; None if all steps are allowed.
    """

    labels: np.ndarray
    start: np.ndarray
    num_states: int
    allowed: AllowedSteps | None = None

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """Return for each example the labelling of largest Hamming loss Δ plus score, as a cutting plane."""
        lengths = np.diff(self.start)[examples]
        truth = self._truths(examples)
        augmented = scores.astype(np.float64) + 1
        augmented[np.arange(len(truth)), truth] -= 1
        transition = couplings.reshape(self.num_states, -1)
        if self.allowed is not None:
            augmented, transition = self.allowed.forbid(augmented, transition, lengths)
        found, bound = best_labels(augmented, transition, lengths, truth)
        return Maximisers(self.planes(examples, found), bound)

    def planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        """Return the cutting planes of concatenated labellings, one for each of ``examples``, ascending."""
        lengths = np.diff(self.start)[examples]
        truth, size = self._truths(examples), self.num_states
        plane = np.repeat(np.arange(len(examples)), lengths)
        position = np.arange(len(plane)) - np.repeat(lengths.cumsum() - lengths, lengths)
        steps = np.flatnonzero(plane[1:] == plane[:-1])
        # Number the entries of each plane, unary entries first, so that entries with equal keys can be added.
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


def best_labels(
    scores: np.ndarray, transition: np.ndarray, lengths: np.ndarray, truth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each chain's labelling of largest score, and the score minus the score of the truth, (chains,).

    Args:
        scores: (positions, states), chain after chain.
        transition: the scores of transitions, (states, states).
        lengths: the number of positions of each chain, (chains,).
        truth: the true labels, (positions,).
    """
    labels, _ = _best_paths(scores, transition, lengths)
    steps = np.delete(np.arange(len(truth)), lengths.cumsum() - 1)

    def each(path: np.ndarray) -> np.ndarray:
        values = scores[np.arange(len(path)), path]
        values[steps] += transition[path[steps], path[steps + 1]]
        return values

    return labels, np.add.reduceat(each(labels) - each(truth), lengths.cumsum() - lengths)


def _best_paths(
    scores: np.ndarray, transition: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each chain's labelling of largest score (positions,), and whether it is allowed (chains,)."""
    labels, kernel = np.zeros(len(scores), np.int64), kernels("search.chains")
    first = lengths.cumsum() - lengths
    return labels, kernel.best_paths(scores, first, lengths, transition[None], (0, 0), labels)


def padded_chains(
    scores: np.ndarray, transition: np.ndarray, lengths: np.ndarray, allowed: AllowedSteps | None = None
) -> ChainEnergy:
    """Return concatenated chains, (positions, states), as a padded energy in float64.

    Args:
        allowed: the allowed steps; None if all steps are allowed.
    """
    if allowed is not None:
        scores, transition = allowed.forbid(scores, transition, lengths, -np.inf)
    inside = np.arange(lengths.max()) < lengths[:, None]
    unary = np.zeros((*inside.shape, scores.shape[1]))
    unary[inside] = scores
    parts = map(torch.from_numpy, (unary, np.ascontiguousarray(transition), np.asarray(lengths, np.int64)))
    return ChainEnergy(*parts)
