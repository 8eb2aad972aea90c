"""SparseMAP: a distribution over few labellings, differentiable in the energy, between MAP and marginals.

    max over distributions p(y) of  E[score(y)] − temperature/2 Σ_i E[s_i]²          (s = 2y − 1)

The maximiser lies in the marginal polytope, not in a relaxation, and has few labellings: at most one more
than labels for scores in general position. An active set grows by one MAP labelling at a time (Niculae,
Martins, Blondel and Cardie, "SparseMAP: Differentiable sparse structured inference", ICML 2018, section 3 and
appendix B; their ½ Σ over both values of each label is the term at temperature ½). Over the local polytope,
for more labels than exact decoding allows, the same programme is
:func:`lmbm_torch.inference.relaxations.lp_layer.relaxed_labels` with ``pair_temperature=0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.shapes import Float, Int

__all__ = ["marginals"]

# Numbers below this share of the scores are 0 for the active set, with linear algebra in float64.
ROUND_OFF = 1e-11


@dataclass(frozen=True)
class SparseMarginals:
    """Distribution over a few labellings of each example.

    Args:
        labels: P(y_i = 1).
        labellings: {0, 1}, with positive probability; examples with fewer labellings end in zeros.
        probabilities: of each labelling, 0 for filler rows.
        objective: E[score] − temperature/2 Σ_i E[s_i]².
        bound: no distribution's objective is larger.
        status: ``residual`` is bound − objective, ``num_iters`` counts calls of the decoder.
    """

    labels: Float[Tensor, "batch labels"]
    labellings: Int[Tensor, "batch support labels"]
    probabilities: Float[Tensor, "batch support"]
    objective: Float[Tensor, " batch"]
    bound: Float[Tensor, " batch"]
    status: Status


def marginals(
    energy: PairwiseEnergy,
    *,
    temperature: float = 1.0,
    num_iters: int = 1000,
    tol: float = 1e-9,
    decoder: Callable[[PairwiseEnergy], Decoding] = exact.decode,
) -> SparseMarginals:
    """Return the distribution that maximises E[score] − temperature/2 Σ_i E[s_i]².

    Gradients flow from ``labels``, ``probabilities`` and ``objective`` to the energy's tensors; the search
    for the labellings runs on the CPU in float64.

    Args:
        energy: a Boltzmann machine.
        temperature: > 0, in units of the score; towards 0 the MAP labelling has all probability.
        num_iters: the largest number of calls of the decoder, each for all open examples.
        tol: an example has converged once the bound is within this share of the scores' size.
        decoder: energy → the labelling of largest score, with a bound; by default enumeration. With an
            inexact decoder the result is optimal among the labellings found, and ``status.exact`` false
            unless the bounds prove more.

    Raises:
        ValueError: an energy that the decoder refuses; a temperature or tolerance that is not a finite number
            above 0, ``num_iters`` below 1.
    """
    check_positive("temperature", temperature)
    check_positive("tol", tol)
    check_count("num_iters", num_iters)
    energy.check_values()
    support, residual, converged, calls = _search(energy, temperature, num_iters, tol, decoder)
    most = max(len(one.probabilities) for one in support)

    def padded(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows, np.zeros((most - len(rows), *rows.shape[1:]))])

    labellings = torch.tensor(np.array([padded((one.spins + 1) / 2) for one in support]), device="cpu").long()
    found = torch.tensor(np.array([padded(one.probabilities) for one in support]), device="cpu")
    labellings, found = labellings.to(energy.device), found.to(energy.device)
    scores = first_order(energy, "sparse_map.marginals").score(labellings.transpose(0, 1)).mT
    probabilities = _Distribution.apply(scores, labellings, found, temperature)
    labels = torch.einsum("bs,bsi->bi", probabilities, labellings.to(energy.dtype))
    # Rounding may carry a sum of probabilities past 1.
    labels = labels.clamp(0, 1)
    spins = 2 * labels - 1
    objective = (probabilities * scores).sum(-1) - temperature / 2 * spins.square().sum(-1)
    left = torch.tensor(residual, device="cpu").to(energy.device, energy.dtype)
    done = torch.tensor(converged, device=energy.device)
    status = Status(done, done.clone(), torch.tensor(calls, device=energy.device), left)
    return SparseMarginals(labels, labellings, probabilities, objective, objective.detach() + left, status)


@dataclass(frozen=True)
class _ActiveSet:
    """Labellings of one example with positive probability.

    Args:
        spins: (labellings, labels), {−1, 1}.
        scores: (labellings,).
        probabilities: (labellings,), optimal among these labellings.
    """

    spins: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Return E[s_i]."""
        return self.probabilities @ self.spins

    def holds(self, spins: np.ndarray) -> bool:
        return bool((self.spins == spins).all(1).any())

    def extended(self, spins: np.ndarray, score: float, temperature: float) -> _ActiveSet:
        """Return the set with a further labelling, without labellings of probability 0.

        Each step goes to the optimum of the affine hull, or along a direction with rising scores and constant
        mean spins, as far as probabilities stay above 0; the first labelling at 0 leaves.
        """
        all_spins = np.vstack([self.spins, spins])
        scores = np.append(self.scores, score)
        probabilities = np.append(self.probabilities, 0.0)
        while True:
            change, longest = _direction(all_spins, scores, probabilities, temperature)
            falling = change < 0
            reach = probabilities[falling] / -change[falling]
            if not falling.any() or reach.min() >= longest:
                probabilities = probabilities + longest * change
                kept = probabilities > ROUND_OFF
                return _ActiveSet(all_spins[kept], scores[kept], probabilities[kept])
            leaves = np.flatnonzero(falling)[reach.argmin()]
            probabilities = np.delete(probabilities + reach.min() * change, leaves)
            all_spins, scores = np.delete(all_spins, leaves, 0), np.delete(scores, leaves)


def _direction(
    spins: np.ndarray, scores: np.ndarray, probabilities: np.ndarray, temperature: float
) -> tuple[np.ndarray, float]:
    """Return the change of probabilities towards the optimum among probabilities that sum to 1.

    Returns:
        The change, and the largest multiple of the change.
    """
    count = len(scores)
    scores = scores - scores.mean()
    fixed = np.vstack([spins.T, np.ones(count)])
    _, singular, right = np.linalg.svd(fixed)
    still = right[(singular > 1e-9 * singular[0]).sum() :]
    drift = still.T @ (still @ scores)
    if np.abs(drift).max(initial=0.0) > ROUND_OFF * max(1.0, np.abs(scores).max()):
        return drift, np.inf
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = temperature * spins @ spins.T
    system[count, :count] = system[:count, count] = 1
    optimum = np.linalg.lstsq(system, np.append(scores, 1.0), rcond=None)[0][:count]
    change = optimum - probabilities
    return change - still.T @ (still @ change), 1.0


def _search(
    energy: PairwiseEnergy,
    temperature: float,
    num_iters: int,
    tol: float,
    decoder: Callable[[PairwiseEnergy], Decoding],
) -> tuple[list[_ActiveSet], np.ndarray, np.ndarray, np.ndarray]:
    """Grow each example's active set until no labelling would raise the objective.

    Returns:
        The active sets, the largest shortfall of the objectives, whether within the tolerance, and the calls
        of the decoder.
    """
    pairwise = energy.pairwise.detach().double().cpu()
    precise = PairwiseEnergy(energy.unary.detach().double().cpu(), pairwise)
    count = energy.batch_size
    scale = (precise.unary.abs().sum(-1) + precise.pairwise.abs().sum((-2, -1)) / 2).clamp(min=1.0)
    none = np.zeros((0, energy.num_labels))
    active = [_ActiveSet(none, none[:, 0], none[:, 0])] * count
    residual, calls = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    open_rows = torch.arange(count, device="cpu")
    for _ in range(num_iters):
        rows = open_rows.tolist()
        mean = torch.tensor(np.array([active[row].mean for row in rows]), device="cpu")
        part = precise.select(open_rows)
        # The objective's gradient: the gain of each labelling at the present mean.
        best = decoder(part.add_unary(-2 * temperature * mean))
        shift = temperature * mean.sum(-1)
        labels = best.labels
        scores, bounds = part.score(labels).numpy(), (best.bound + shift).numpy()
        spins = to_spins(labels, torch.float64).numpy()
        for place, row in enumerate(rows):
            calls[row] += 1
            now = active[row]
            present = now.probabilities @ now.scores - temperature * now.mean @ now.mean
            if len(now.scores):
                residual[row] = max(0.0, bounds[place] - present)
            if residual[row] > tol * float(scale[row]) and not now.holds(spins[place]):
                active[row] = now.extended(spins[place], float(scores[place]), temperature)
            else:
                open_rows = open_rows[open_rows != row]
        if not len(open_rows):
            break
    return active, residual, residual <= tol * scale.numpy(), calls


class _Distribution(torch.autograd.Function):
    """Map from scores of the active labellings to probabilities, with the derivative by the active set.

    With a constant active set p solves an equality-constrained programme: the derivative by the scores is the
    first block of the inverse of [[temperature S Sᵀ, 1], [1ᵀ, 0]], with spins S (Niculae et al. 2018, section
    3.1).
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
        spins = to_spins(labellings, torch.float64) * there[..., None]
        # Filler rows are independent.
        inner = ctx.temperature * spins @ spins.mT + torch.diag_embed(1 - there)
        above = torch.cat([inner, there[..., None]], -1)
        below = torch.cat([there, there.new_zeros(len(there), 1)], -1)
        system = torch.cat([above, below[:, None]], 1)
        inverse = torch.linalg.pinv(system, hermitian=True)[:, :-1, :-1]
        wanted = grad.double() * there
        by_scores = (inverse @ wanted[..., None]).squeeze(-1) * there
        return by_scores.to(grad.dtype), None, None, None
