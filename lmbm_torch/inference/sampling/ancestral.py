"""Ancestral sampling of directed models: each label is drawn given the labels that come before.

If all examples share the couplings, they also share random numbers: answers do not depend on other examples.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.inference.common.results import Marginals, Status
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.search.records import Answers, Chances, Network
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int
from lmbm_torch.verdicts import one_door, settle

__all__ = ["marginals", "sample"]


def is_for(energy: object) -> bool:
    """Return whether the energy is a belief network on the CPU, with shared parents and without cliques."""
    return (
        isinstance(energy, DirectedEnergy)
        and energy.device.type == "cpu"
        and energy.parents.ndim == 2
        and energy.clique_weight is None
    )


def labellings_of_most_f1(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the labelling of largest mean F1 over samples, (batch, labels), its mean F1, and the error."""
    search = kernels("search.samples")
    answers: Answers = search.labellings_of_most_f1(_network(energy), _noise(energy, num_samples, generator))
    labels = torch.from_numpy(answers.labels).long()[:, energy.positions]
    error = (torch.from_numpy(answers.variance) / num_samples).sqrt()
    return labels, torch.from_numpy(answers.mean), error


def mean_chances(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return the mean over samples of P(y_i = 1 | y_pa(i)), (batch, labels), in float64, and the error."""
    draw = kernels("search.samples")
    chances: Chances = draw.mean_chances(_network(energy), _noise(energy, num_samples, generator))
    error = (torch.from_numpy(chances.variance) / (num_samples - 1)).sqrt()
    return torch.from_numpy(chances.mean)[:, energy.positions], error[:, energy.positions]


def _noise(energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None) -> np.ndarray:
    uniform = torch.rand(
        num_samples, energy.num_labels, dtype=torch.float64, generator=generator, device="cpu"
    )
    return uniform.logit().numpy()


def _network(energy: DirectedEnergy) -> Network:
    """Return the arrays of a belief network over {0, 1}, whose log-odds are twice the fields."""
    ordered = energy.in_order()
    parents = ordered.parents.double().numpy()
    parent, child = np.nonzero(parents.T)
    start = np.searchsorted(parent, np.arange(energy.num_labels + 1))
    log_odds = 2 * (ordered.unary.double().numpy() - parents.sum(1))
    return Network(np.ascontiguousarray(log_odds), start, child, 4 * parents[child, parent])


# Largest bytes of one (samples, batch, labels) tensor; a pass needs three such tensors.
CHUNK_BYTES = 16 * 2**20
# Largest share of nonzero weights for which only the nonzero weights are read. (Half of the matrix is always
# 0, since parents come before their children.)
_FEW = 0.1


def next_field(
    energy: DirectedEnergy, spins: Float[Tensor, "*samples _batch earlier"]
) -> Float[Tensor, "*samples batch"]:
    """Return the local field of the label at position t, given the t spins before it.

    Args:
        energy: a model whose ordering is 0 … K − 1 (:meth:`DirectedEnergy.in_order`).
        spins: {−1, +1}, of positions 0 … t − 1.
    """
    position = spins.shape[-1]
    parents = energy.parents[..., position, :position]
    field = energy.unary[:, position]
    field = field + (spins @ parents if parents.ndim == 1 else (spins * parents).sum(-1))
    if energy.clique_weight is not None:
        for index, clique in enumerate(energy.cliques):
            if clique[-1] == position:
                field = field + energy.clique_weight[..., index] * spins[..., clique[:-1]].prod(-1)
    return field


@one_door
@torch.no_grad()
def sample(
    energy: DirectedEnergy | SequentialEnergy, num_samples: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y) = Π_i P(y_i | y_pa(i)), {0, 1} or class indices, as int64.

    Args:
        energy: a directed model, on any device.
        num_samples: the number of draws for each example.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy; ``num_samples`` is below 1.
    """
    energy.check_values()
    check_count("num_samples", num_samples)
    if isinstance(energy, SequentialEnergy):
        return _label_by_label(energy, num_samples, generator)
    labels = torch.empty(
        num_samples, energy.batch_size, energy.num_labels, dtype=torch.int64, device=energy.device
    )
    drawn = 0
    for probabilities, ordered in _draws(energy, num_samples, generator):
        labels[drawn : drawn + len(probabilities), :, energy.ordering] = ordered
        drawn += len(probabilities)
    return labels


@one_door
@torch.no_grad()
def marginals(
    energy: DirectedEnergy, num_samples: int, *, generator: torch.Generator | None = None
) -> Marginals:
    """Return P(y_i = 1) as the mean over samples of P(y_i = 1 | y_pa(i)) = σ(2 z_i), with the standard error.

    Averaging conditional probabilities has at most the variance of averaging sampled labels (Rao–Blackwell),
    and none for labels without parents. The log partition is 0, as for any directed model;
    ``status.residual`` is an example's largest standard error. On the CPU, examples with shared weights of
    parents share the random numbers.

    Args:
        energy: a directed model, on any device.
        num_samples: the number of draws for each example, at least 2.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: NaN, infinity or a misplaced parent in the energy; ``num_samples`` is below 2.
    """
    energy.check_values()
    check_count("num_samples", num_samples)
    if num_samples == 1:
        raise ValueError(f"num_samples: expected at least 2, for a standard error, got {num_samples}")
    if is_for(energy):
        mean, error = mean_chances(energy, num_samples, generator)
    else:
        mean, error = _mean_chances(energy, num_samples, generator)
    mean, error = mean.to(energy.dtype), error.to(energy.dtype)
    done = torch.ones(energy.batch_size, dtype=torch.bool, device=energy.device)
    status = Status(~done, done, torch.full_like(done, num_samples, dtype=torch.int64), error.amax(-1))
    return Marginals(mean, torch.zeros_like(mean[:, 0]), status, error)


def _mean_chances(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    mean = torch.zeros_like(energy.unary)
    squares = torch.zeros_like(energy.unary)
    drawn = 0
    for probabilities, _ in _draws(energy, num_samples, generator):
        # Join means and squared deviations (Chan's formula): differences of raw moments would lose digits.
        count = len(probabilities)
        variance, chunk_mean = torch.var_mean(probabilities, 0, correction=0)
        step = chunk_mean - mean
        mean = mean + step * (count / (drawn + count))
        squares = squares + count * variance + step**2 * (drawn * count / (drawn + count))
        drawn += count
    error = (squares / (drawn * (drawn - 1))).sqrt()
    return mean[:, energy.positions], error[:, energy.positions]


def _draws(
    energy: DirectedEnergy, num_samples: int, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of P(y_i = 1 | y_pa(i)) and y_i, each (samples, batch, positions)."""
    settle()
    ordered = energy.in_order()
    parents = _few_parents(ordered)
    per_sample = energy.batch_size * energy.num_labels * energy.dtype.itemsize
    chunk = max(1, part_bytes(CHUNK_BYTES) // per_sample)
    for start in range(0, num_samples, chunk):
        shape = (energy.num_labels, min(chunk, num_samples - start), energy.batch_size)
        probabilities, spins = energy.unary.new_empty(shape), energy.unary.new_empty(shape)
        for position in range(energy.num_labels):
            if parents is None:
                field = next_field(ordered, spins[:position].movedim(0, -1))
            else:
                seen, weights = parents[position]
                field = ordered.unary[:, position] + torch.tensordot(weights, spins[seen], dims=1)
            probabilities[position] = torch.sigmoid(2 * field)
            spins[position] = to_spins(torch.bernoulli(probabilities[position], generator=generator))
        yield probabilities.movedim(0, -1), (spins > 0).long().movedim(0, -1)


def _few_parents(ordered: DirectedEnergy) -> list[tuple[Tensor, Tensor]] | None:
    """Return the parents of each label, by position, and the weights; None if there are many parents.

    The result is also None on a GPU, where the check would wait for the GPU.
    """
    parents = ordered.parents
    if parents.device.type != "cpu" or parents.ndim > 2 or ordered.clique_weight is not None:
        return None
    if parents.count_nonzero() > _FEW * parents.numel():
        return None
    seen = [row.nonzero()[:, 0] for row in parents]
    return [(some, row[some]) for some, row in zip(seen, parents, strict=True)]


def _label_by_label(
    energy: SequentialEnergy, num_samples: int, generator: torch.Generator | None
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw from a sequential energy, label by label, with one call for all samples of a label."""
    rows = torch.arange(energy.batch_size, device="cpu").repeat(num_samples)
    values = torch.zeros(len(rows), energy.num_labels, dtype=torch.int64, device="cpu")
    for position in range(energy.num_labels):
        probability = energy.log_conditional(position, rows, values[:, :position]).exp()
        values[:, position] = torch.multinomial(probability, 1, generator=generator)[:, 0]
    return values[:, energy.positions].view(num_samples, energy.batch_size, -1)
