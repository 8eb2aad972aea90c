"""Exact inference in chains by dynamic programming: forward–backward, Viterbi, sampling.

Source: max_margin_markov_networks_survey_2003, section 4.2.

To keep rounding errors independent of a chain's length, the largest log-potential is first subtracted at each
position, and the largest entry of each message after each step.

On the CPU a compiled kernel goes through the chains in turn, gradients included. Without the kernel, and
for second gradients, each step computes one position of the whole batch. Sum-product steps are matrix
products of probabilities: if transitions differ by less than the dtype's range, terms that underflow are too
small to change any sum. If transitions differ by more, for instance because some are forbidden, the kernel
reports the chains that may have lost terms, and the sums are computed again by logsumexp.

On a GPU all positions are computed together (:mod:`lmbm_torch.inference.trees.chain_scans`), by logsumexp.

To fix a known label, set its unary log-potentials to −∞ for all other states.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies.chain import PADDING, ChainEnergy
from lmbm_torch.inference.common.results import Decoding, StateMarginals, Status
from lmbm_torch.inference.trees import chain_gradient, chain_steps
from lmbm_torch.inference.trees.chain_steps import Chains, best_labels
from lmbm_torch.shapes import Float, Int
from lmbm_torch.verdicts import number, one_door

__all__ = ["decode", "entropy", "log_partition", "marginals", "sample"]


@one_door
def log_partition(energy: ChainEnergy) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), differentiable any number of times; the gradient is the marginals.

    Args:
        energy: chains in float32 or float64, on any device.

    Raises:
        ValueError: NaN or +∞ in the energy; all labellings of a chain are forbidden.
    """
    return chain_gradient.log_partition(energy)


@one_door
@torch.no_grad()
def marginals(energy: ChainEnergy) -> StateMarginals:
    """Return P(y_t) and P(y_t, y_{t+1}) by forward–backward, and the log partition.

    Args:
        energy: see :func:`log_partition`.

    Returns:
        The marginals. ``status.exact`` is false for log-potentials above 5e10, where probabilities have
        relative errors above 1e-5 even in float64.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    if chain_steps.is_coarse(energy):
        fine = marginals(energy.to(torch.float64))
        assert fine.edges is not None
        parts = (fine.states, fine.log_partition, fine.edges, fine.status.residual)
        states, log_partition, edges, residual = (part.to(energy.dtype) for part in parts)
        return StateMarginals(states, replace(fine.status, residual=residual), log_partition, edges)
    chains = Chains.of(energy)
    found = chain_steps.sums(energy, chains)
    nodes, edges, log_partition = chain_steps.sums_by_steps(energy, chains) if found is None else found
    status = Status.certain(energy, energy.lengths)
    if found is None and chain_steps.largest(energy) > chain_steps.COARSE_DOUBLE:
        status = replace(status, exact=torch.zeros_like(status.exact))
    return StateMarginals(nodes, status, log_partition, edges)


@one_door
def entropy(energy: ChainEnergy) -> Float[Tensor, " batch"]:
    """Return −Σ_y p(y) log p(y), in nats; differentiable, with a (states, states) table in each step.

    A forward pass computes H_t(s), the entropy of the labels before t given y_t = s, by the chain rule. No
    term is negative, and terms are far smaller than scores, so few digits are lost.

    Args:
        energy: see :func:`log_partition`.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    chains = Chains.of(energy)
    forward, _ = chain_steps.forward(chains)
    before = torch.zeros_like(forward[0])
    for message, step in zip(forward[:-1], chains.steps(), strict=True):
        given = (message[..., None] + step.transition).log_softmax(-2)
        after = (given.exp() * (before[..., None] - given)).sum(-2)
        before = after.where(step.inside, before)
    last = forward[-1].log_softmax(-1)
    return (last.exp() * (before - last)).sum(-1)


@one_door
@torch.no_grad()
def sample(
    energy: ChainEnergy, num_samples: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "num_samples batch length"]:
    """Draw independent labellings from p(y), int64 with ``PADDING`` beyond a chain's end.

    Args:
        energy: see :func:`log_partition`.
        num_samples: the number of draws for each chain.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: see :func:`log_partition`; ``num_samples`` is below 1.
    """
    check_count("num_samples", num_samples)
    chains = Chains.of(energy)
    forward, _ = chain_steps.forward(chains)
    last = forward[-1].expand(num_samples, -1, -1)
    draw = partial(chain_steps.draw, generator=generator)
    labels = chain_steps.trace(last, forward, chains, draw)
    return labels.where(energy.inside, PADDING)


@one_door
@torch.no_grad()
def decode(energy: ChainEnergy, *, top_k: int = 1) -> Decoding:
    """Return the labelling with the largest score (MAP, Viterbi), or the ``top_k`` best labellings.

    Of equally good labellings, the one with the lower state at the last position where they differ is
    returned; with ``top_k`` above 1, equally good labellings come in any order.

    Args:
        energy: see :func:`log_partition`.
        top_k: the number of labellings to return, best first; the bound is then the last labelling's score.

    Returns:
        Labels with ``PADDING`` beyond a chain's end; objective and bound are scores. If a chain has fewer
        than ``top_k`` allowed labellings, the remaining rows are ``PADDING`` with score −∞.

    Raises:
        ValueError: see :func:`log_partition`; ``top_k`` is below 1, or no chain has so many labellings.
    """
    check_count("top_k", top_k)
    if top_k == 1:
        labels = best_labels(energy).where(energy.inside, PADDING)
        objective = energy.score(labels)
        return Decoding(labels, objective, objective.clone(), Status.certain(energy, energy.lengths))
    best, pointers = chain_steps.best_paths(Chains.of(energy), top_k)
    ranks = best.shape[-1]
    best = best.flatten(1)
    most = int(number("most labellings", (best,), lambda: _are_possible(best).sum(-1).max()))
    if most < top_k:
        raise ValueError(f"top_k: expected at most {most}, the most labellings a chain has, got {top_k}")
    values, places = best.topk(top_k, -1)
    are_found = _are_possible(values)
    states = [places // ranks]
    for pointer, ranks in reversed(pointers):
        places = pointer.flatten(1).gather(1, places)
        states.append(places // ranks)
    labels = torch.stack(states[::-1], -1).where(energy.inside[:, None], PADDING)
    objective = energy.score(labels.transpose(0, 1)).mT.where(are_found, -torch.inf)
    labels = labels.where(are_found[..., None], PADDING)
    # Sort again, because rounding of the recomputed scores may change the order.
    objective, order = objective.sort(stable=True, descending=True)
    labels = labels.take_along_dim(order[..., None], 1)
    return Decoding(labels, objective, objective[:, -1].clone(), Status.certain(energy, energy.lengths))


def _are_possible(scores: Tensor) -> Tensor:
    """Return whether paths, given scores relative to the best path, contain no forbidden transition."""
    return scores > chain_steps.FORBIDDEN / 2
