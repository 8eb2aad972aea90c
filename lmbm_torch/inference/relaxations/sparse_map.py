"""SparseMAP: a distribution over few labellings that is differentiable in the energy.

    max over distributions p(y) of  E[score(y)] − temperature/2 Σ_i (2 Σ_s P(y_i = s)² − 1)

The result lies between the MAP labelling and the marginals. For labels of two values, the penalty is
temperature/2 Σ_i E[s_i]² with spins s = 2y − 1. The maximum is over all labellings, not over a relaxation,
and few labellings have positive probability: for scores in general position, at most one more than there are
labels of two values. The algorithm keeps an active set of labellings and adds one MAP labelling at a time
(Niculae, Martins, Blondel and Cardie, "SparseMAP: Differentiable sparse structured inference", ICML 2018,
section 3 and appendix B; their penalty ½ Σ over all values of each label is ours at temperature ½). For
Boltzmann machines with more labels than exact decoding allows,
:func:`lmbm_torch.inference.relaxations.lp_layer.relaxed_labels` with ``pair_temperature=0`` solves the same
problem over the local polytope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.energies import ChainEnergy, CliqueEnergy, FactorEnergy, PairwiseEnergy, TreeEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.trees import chain_dp, tree_dp
from lmbm_torch.shapes import Float, Int

__all__ = ["marginals"]

AnyEnergy = PairwiseEnergy | CliqueEnergy | ChainEnergy | TreeEnergy | FactorEnergy
# Default exact decoder for each kind of energy.
DECODERS: dict[type, Callable[[Any], Decoding]] = {
    PairwiseEnergy: exact.decode,
    CliqueEnergy: exact.decode,
    ChainEnergy: chain_dp.decode,
    TreeEnergy: tree_dp.decode,
    FactorEnergy: elimination.decode,
}
# Share of the largest score below which numbers are 0 in the active set's linear algebra, in float64.
ROUND_OFF = 1e-11


@dataclass(frozen=True)
class SparseMarginals:
    """Distribution over a few labellings of each example.

    Args:
        states: P(y_i = s), 0 for states that a label does not have, and beyond a chain's or graph's end.
        labellings: the labellings of positive probability; examples with fewer labellings have copies at the
            end.
        probabilities: the probability of each labelling, 0 for copies.
        objective: E[score] − temperature/2 Σ_i (2 Σ_s P(y_i = s)² − 1).
        bound: an upper bound of the objective over all distributions.
        status: ``residual`` is bound − objective, ``num_iters`` the number of calls of the decoder.
    """

    states: Float[Tensor, "batch labels states"]
    labellings: Int[Tensor, "batch support labels"]
    probabilities: Float[Tensor, "batch support"]
    objective: Float[Tensor, " batch"]
    bound: Float[Tensor, " batch"]
    status: Status

    @property
    def labels(self) -> Float[Tensor, "batch labels"]:
        """Return P(y_i = 1), for labels of two values."""
        return self.states[..., 1]


def marginals(
    energy: AnyEnergy,
    *,
    temperature: float = 1.0,
    num_iters: int = 1000,
    tol: float = 1e-9,
    decoder: Callable[[Any], Decoding] | None = None,
) -> SparseMarginals:
    """Return the distribution that maximises E[score] − temperature/2 Σ_i (2 Σ_s P(y_i = s)² − 1).

    Gradients flow from ``states``, ``probabilities`` and ``objective`` to the energy's tensors. The search
    for labellings runs on the CPU in float64.

    Args:
        energy: a Boltzmann machine, chains, trees or graphs of tables.
        temperature: > 0, in units of the score; as it approaches 0, the MAP labelling gets all probability.
        num_iters: the largest number of calls of the decoder, each for all examples not yet converged.
        tol: the gap of bound and objective at which an example has converged, relative to the largest score.
        decoder: a function that takes an energy and returns the labelling of largest score, with a bound; by
            default enumeration for a Boltzmann machine, else dynamic programming. With an inexact decoder the
            result is optimal among the labellings found, and ``status.exact`` false unless bounds prove more.

    Raises:
        TypeError: there is no default decoder for the kind of energy.
        ValueError: the decoder refuses the energy; a temperature or tolerance that is not a finite number
            above 0; ``num_iters`` below 1.
    """
    check_positive("temperature", temperature)
    check_positive("tol", tol)
    check_count("num_iters", num_iters)
    if decoder is None:
        if type(energy) not in DECODERS:
            names = ", ".join(kind.__name__ for kind in DECODERS)
            raise TypeError(f"energy: expected one without rules, of {names}, got {type(energy).__name__}")
        decoder = DECODERS[type(energy)]
    learnt = first_order(energy, "sparse_map.marginals")
    energy.check_values()
    support, residual, converged, calls = _search(energy, temperature, num_iters, tol, decoder)
    most = max(len(one.probabilities) for one in support)

    def rows(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(energy.device)

    beyond = [most - len(one.probabilities) for one in support]
    each = list(zip(support, beyond, strict=True))
    labellings = rows([np.pad(one.labels, ((0, more), (0, 0)), "wrap") for one, more in each])
    found = rows([np.pad(one.probabilities, (0, more)) for one, more in each])
    scores = learnt.score(labellings.transpose(0, 1)).mT
    probabilities = _Distribution.apply(scores, labellings, found, temperature)
    is_state = labellings[..., None] == torch.arange(_num_states(energy), device=energy.device)
    # Rounding may raise a sum of probabilities above 1, so clamp.
    states = torch.einsum("bn,bnis->bis", probabilities, is_state.to(energy.dtype)).clamp(0, 1)
    spread = (2 * states.square().sum(-1) - 1).where(labellings[:, 0] >= 0, 0).sum(-1)
    objective = (probabilities * scores).sum(-1) - temperature / 2 * spread
    left = torch.tensor(residual, device="cpu").to(energy.device, energy.dtype)
    done = torch.tensor(converged, device=energy.device)
    status = Status(done, done.clone(), torch.tensor(calls, device=energy.device), left)
    return SparseMarginals(states, labellings, probabilities, objective, objective.detach() + left, status)


def _num_states(energy: AnyEnergy) -> int:
    return 2 if isinstance(energy, PairwiseEnergy | CliqueEnergy) else energy.num_states


def _marks(labels: np.ndarray, states: int) -> np.ndarray:
    """Return marks √2 ([y_i = s] − ½) of every label i and state s, whose products measure agreement."""
    marks = (labels[..., None] == np.arange(states)) - 0.5
    return 2**0.5 * marks.reshape(*labels.shape[:-1], -1)


@dataclass(frozen=True)
class _ActiveSet:
    """Labellings of positive probability for an example.

    Args:
        labels: (labellings, labels).
        marks: :func:`_marks` of the labels.
        scores: (labellings,).
        probabilities: (labellings,), optimal among the labellings.
    """

    labels: np.ndarray
    marks: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Return the mean of the marks under the distribution."""
        return self.probabilities @ self.marks

    def holds(self, labels: np.ndarray) -> bool:
        return bool((self.labels == labels).all(1).any())

    def extended(self, labels: np.ndarray, marks: np.ndarray, score: float, temperature: float) -> _ActiveSet:
        """Add a labelling, find the optimal probabilities, and drop labellings of probability 0.

        Each step moves towards the optimum over probabilities of any sign that sum to 1, or in a direction
        that raises scores and keeps mean marks, until a probability reaches 0; that labelling is dropped.
        """
        every, marks = np.vstack([self.labels, labels]), np.vstack([self.marks, marks])
        scores = np.append(self.scores, score)
        probabilities = np.append(self.probabilities, 0.0)
        while True:
            change, longest = _direction(marks, scores, probabilities, temperature)
            falling = change < 0
            reach = probabilities[falling] / -change[falling]
            if not falling.any() or reach.min() >= longest:
                probabilities = probabilities + longest * change
                kept = probabilities > ROUND_OFF
                return _ActiveSet(every[kept], marks[kept], scores[kept], probabilities[kept])
            leaves = np.flatnonzero(falling)[reach.argmin()]
            probabilities = np.delete(probabilities + reach.min() * change, leaves)
            every, marks, scores = (np.delete(rows, leaves, 0) for rows in (every, marks, scores))


def _direction(
    marks: np.ndarray, scores: np.ndarray, probabilities: np.ndarray, temperature: float
) -> tuple[np.ndarray, float]:
    """Return the direction from the probabilities to the optimum over numbers of any sign that sum to 1.

    Returns:
        The change of probabilities, and the largest multiple of the change to take.
    """
    count = len(scores)
    scores = scores - scores.mean()
    fixed = np.vstack([marks.T, np.ones(count)])
    _, singular, right = np.linalg.svd(fixed)
    still = right[(singular > 1e-9 * singular[0]).sum() :]
    drift = still.T @ (still @ scores)
    if np.abs(drift).max(initial=0.0) > ROUND_OFF * max(1.0, np.abs(scores).max()):
        return drift, np.inf
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = temperature * marks @ marks.T
    system[count, :count] = system[:count, count] = 1
    optimum = np.linalg.lstsq(system, np.append(scores, 1.0), rcond=None)[0][:count]
    change = optimum - probabilities
    return change - still.T @ (still @ change), 1.0


@torch.no_grad()
def _search(
    energy: AnyEnergy, temperature: float, num_iters: int, tol: float, decoder: Callable[[Any], Decoding]
) -> tuple[list[_ActiveSet], np.ndarray, np.ndarray, np.ndarray]:
    """Grow each example's active set until no labelling would raise the objective.

    Returns:
        The active sets, the gap between bound and objective, whether each gap is within the tolerance, and
        the number of decoder calls, for each example.
    """
    precise, states = energy.to("cpu", torch.float64), _num_states(energy)
    count = energy.batch_size
    none = np.zeros((0, energy.num_labels * states))
    empty = _ActiveSet(np.zeros((0, energy.num_labels), np.int64), none, none[:, 0], none[:, 0])
    active, scale = [empty] * count, np.ones(count)
    residual, calls = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    open_rows = torch.arange(count, device="cpu")
    for _ in range(num_iters):
        rows = open_rows.tolist()
        part, means = precise.select(open_rows), np.array([active[row].mean for row in rows])
        # Decode the gradient of the objective: the labelling that gains most at the present distribution.
        best, gains = _gains(part, -temperature * means, decoder)
        # A subset of packed graphs may have fewer labels than the batch, so pad.
        beyond = ((0, 0), (0, energy.num_labels - part.num_labels))
        labels = np.pad(best.labels.numpy(), beyond, constant_values=PADDING)
        marks, scores = _marks(labels, states), part.score(best.labels).numpy()
        for place, row in enumerate(rows):
            calls[row] += 1
            now = active[row]
            present = now.probabilities @ now.scores - temperature * now.mean @ now.mean
            scale[row] = max(scale[row], abs(scores[place]))
            if len(now.scores):
                residual[row] = max(0.0, gains[place] - present)
            if residual[row] > tol * scale[row] and not now.holds(labels[place]):
                active[row] = now.extended(labels[place], marks[place], float(scores[place]), temperature)
            else:
                open_rows = open_rows[open_rows != row]
        if not len(open_rows):
            break
    return active, residual, residual <= tol * scale, calls


def _gains(
    energy: AnyEnergy, price: np.ndarray, decoder: Callable[[Any], Decoding]
) -> tuple[Decoding, np.ndarray]:
    """Return the labelling that maximises score(y) + price · marks(y), and an upper bound of the maximum."""
    unary = 2**0.5 * torch.from_numpy(price).unflatten(1, (-1, _num_states(energy)))
    unary, constant = unary[:, : energy.num_labels], -unary.sum((1, 2)) / 2
    if isinstance(energy, PairwiseEnergy | CliqueEnergy):
        unary, constant = unary[..., 1] - unary[..., 0], constant + unary[..., 0].sum(1)
    best = decoder(energy.add_unary(unary))
    return best, (best.bound + constant).numpy()


class _Distribution(torch.autograd.Function):
    """Map from the scores of the active labellings to probabilities, with a derivative.

    If the active set stays the same, p solves a quadratic programme with equality constraints: the derivative
    by the scores is the first block of the inverse of [[temperature M Mᵀ, 1], [1ᵀ, 0]], where the rows of M
    are the labellings' marks (Niculae et al. 2018, section 3.1).
    """

    @staticmethod
    def forward(ctx, scores: Tensor, labellings: Tensor, found: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(labellings, found)
        ctx.temperature = temperature
        return found.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        labellings, found = ctx.saved_tensors
        there = (found > 0).double()
        # Products of marks up to a constant, which cancels because probabilities sum to 1.
        same = 2.0 * (labellings[:, :, None] == labellings[:, None]).sum(-1) - labellings.shape[-1]
        # Copies of labellings get a 1 on the diagonal, so they do not affect the others.
        inner = ctx.temperature * same * there[..., None] * there[:, None] + torch.diag_embed(1 - there)
        above = torch.cat([inner, there[..., None]], -1)
        below = torch.cat([there, there.new_zeros(len(there), 1)], -1)
        system = torch.cat([above, below[:, None]], 1)
        inverse = torch.linalg.pinv(system, hermitian=True)[:, :-1, :-1]
        wanted = grad.double() * there
        by_scores = (inverse @ wanted[..., None]).squeeze(-1) * there
        return by_scores.to(grad.dtype), None, None, None
