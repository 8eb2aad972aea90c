"""Distributions of label vectors by belief networks and Boltzmann machines, also under rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import BipartiteEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding, Marginals, Status, joined
from lmbm_torch.inference.search import mixture
from lmbm_torch.inference.search.most_probable import affordable_labellings
from lmbm_torch.shapes import Float, Int, Labels

# Metrics whose expected value is computed from the most probable label vectors.
EXPECTED = ("hamming", "f1", "jaccard")
DECODERS = ("hinge", "exact_match", *EXPECTED)


def max_labellings(num_labels: int) -> int:
    """Return the largest number of label sets to enumerate for an expected metric."""
    return affordable_labellings(num_labels, LIMITS.member_labellings)


def hinge_losses(energies: Sequence[Any], codes: Tensor, margin: float) -> Tensor:
    """Return the members' mean hinge loss (classes, instances) for label vectors (classes, 1, labels)."""
    margins = torch.stack([energy.local_margins(codes) for energy in energies])
    return (margin - margins).clamp(min=0).sum(-1).mean(0)


class Distribution(Protocol):
    """The distribution P(y | x) of label vectors y for a batch of instances."""

    def marginals(self) -> Marginals | BipartiteMarginals:
        """Return the marginal probabilities of the labels."""
        ...

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,), of label vectors (instances, labels)."""
        ...

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return log P(y | x) + constant, (classes, instances), for label vectors (classes, 1, labels)."""
        ...


@dataclass(frozen=True)
class NetworkMixture:
    """The distribution P(y | x) of an equally weighted mixture of belief networks, or of a single network.

    Args:
        energies: energies of the members, calibrated if there is a calibration.
        draw_seed: function that draws the seed of samples.
    """

    energies: Sequence[DirectedEnergy]
    draw_seed: Callable[[], int]

    def decode(
        self, measure: str, known: Tensor | None, rules: Constraints | None, limits: Mapping[str, Any]
    ) -> Decoding:
        """Return the label sets with the largest expected exact match, Hamming, F1 or Jaccard.

        Args:
            known: (instances, labels) in {0, 1}, known labels; NaN for labels to decode.
            limits: limits of :func:`~lmbm_torch.inference.search.mixture.decode`.
        """
        is_sampled = rules is None and measure != "exact_match"
        return inference.decode_expected(
            self.energies,
            measure,
            known=known,
            constraints=rules,
            max_labellings=max_labellings(self.energies[0].num_labels),
            generator=self._generator() if is_sampled else None,
            **limits,
        )

    def marginals(self) -> Marginals:
        """Return P(y_i = 1), exactly for up to 20 labels or for few parents, otherwise estimated.

        Estimates are means over 1,000 ancestral samples of each member, and have standard errors.
        """
        generator = self._generator()
        found = [inference.marginals(energy, generator=generator) for energy in self.energies]
        return _mixed(cast(list[Marginals], found))

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,), of label vectors (instances, labels) under the mixture."""
        return mixture.log_prob(self.energies, labels)

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return log P(codes), (classes, instances), of label vectors (classes, 1, labels)."""
        return mixture.log_prob(self.energies, codes)

    def _generator(self) -> torch.Generator:
        return torch.Generator(self.energies[0].device).manual_seed(self.draw_seed())


def _mixed(members: Sequence[Marginals]) -> Marginals:
    """Average the members' marginals, and combine standard errors as of independent estimates."""
    if len(members) == 1:
        return members[0]
    every = [member.status for member in members]
    errors = [member.standard_error for member in members if member.standard_error is not None]
    error = torch.stack(errors).square().sum(0).sqrt() / len(members) if errors else None
    status = Status(
        exact=torch.stack([each.exact for each in every]).all(0),
        converged=torch.stack([each.converged for each in every]).all(0),
        num_iters=torch.stack([each.num_iters for each in every]).sum(0),
        residual=torch.zeros_like(every[0].residual) if error is None else error.amax(-1),
    )
    labels = torch.stack([member.labels for member in members]).mean(0)
    return Marginals(labels, members[0].log_partition, status, error)


@dataclass(frozen=True)
class MachineMixture:
    """The distribution P(y | x) ∝ exp(score) of a Boltzmann machine, or a mixture of two after calibration.

    Args:
        energies: a single energy, or the two energies of a joint calibration.
    """

    energies: Sequence[PairwiseEnergy | CliqueEnergy]

    def marginals(self) -> Marginals:
        """Return P(y_i = 1), exactly for up to 22 labels or a sparse graph, otherwise by mean field.

        Raises:
            ValueError: there are more than 22 labels, and cliques of three or more labels.
        """
        members = [cast(Marginals, inference.marginals(each)) for each in self.energies]
        return replace(members[0], labels=torch.stack([each.labels for each in members]).mean(0))

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,), exactly.

        Raises:
            ValueError: there are more than 22 labels, and the graph is dense.
        """
        members = [energy.score(labels) - inference.log_partition(energy) for energy in self.energies]
        return torch.stack(members).logsumexp(0) - math.log(len(members))

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return scores (classes, instances) of label vectors (classes, 1, labels)."""
        return torch.stack([energy.score(codes) for energy in self.energies]).logsumexp(0)


# Number of instances for which tables of label sets are computed at once; limits memory.
ROWS = 128


@dataclass(frozen=True)
class AllowedDistribution:
    """The distribution p(y | y obeys the rules) of a model or of an equally weighted mixture of models.

    The weight of member e becomes proportional to the probability that the rules are obeyed under e:
    p(y | allowed) = Σ_e P_e(allowed) p_e(y | allowed) / Σ_e P_e(allowed).

    Args:
        energies: the energy of the model, or of each member of the mixture.
        rules: rules over the labels.
    """

    energies: Sequence[Any]
    rules: Constraints

    @torch.no_grad()
    def marginals(self) -> Marginals:
        """Return P(y_i = 1 | rules are obeyed), and the log partition function of the allowed label sets."""
        return joined([part._marginals() for part in self._parts()])

    @torch.no_grad()
    def log_prob(self, labels: Labels) -> Float[Tensor, " batch"]:
        """Return log P(y | rules are obeyed), (instances,); −∞ for labels that break a rule."""
        scores = torch.stack([_score(energy, labels) for energy in self.energies]).logsumexp(0)
        parts = [torch.stack(part._log_partitions()).logsumexp(0) for part in self._parts()]
        is_broken = torch.from_numpy(self.rules.violated(labels.cpu().numpy()).any(1)).to(scores.device)
        return (scores - torch.cat(parts)).masked_fill(is_broken, -torch.inf)

    def sample(self, num_samples: int, generator: torch.Generator) -> Int[Tensor, "num_samples batch labels"]:
        """Sample label vectors that obey the rules, independently of each other."""
        return torch.cat([part._sample(num_samples, generator) for part in self._parts()], 1)

    def _parts(self) -> Iterator[AllowedDistribution]:
        """Yield the distribution in batches of instances, to limit memory."""
        for start in range(0, self.energies[0].batch_size, ROWS):
            rows = slice(start, start + ROWS)
            yield AllowedDistribution([energy.select(rows) for energy in self.energies], self.rules)

    def _log_partitions(self) -> list[Tensor]:
        return [inference.log_partition(energy, constraints=self.rules) for energy in self.energies]

    def _marginals(self) -> Marginals:
        members = [inference.marginals(energy, constraints=self.rules) for energy in self.energies]
        if len(members) == 1:
            return members[0]
        masses = torch.stack([member.log_partition for member in members])
        labels = (masses.softmax(0)[..., None] * torch.stack([member.labels for member in members])).sum(0)
        log_partition = masses.logsumexp(0) - math.log(len(members))
        return Marginals(labels, log_partition, members[0].status, method=members[0].method)

    def _sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        drawn = [
            inference.sample(energy, num_samples, constraints=self.rules, generator=generator)
            for energy in self.energies
        ]
        if len(drawn) == 1:
            return drawn[0]
        shares = torch.stack(self._log_partitions(), 1).softmax(1)
        which = torch.multinomial(shares, num_samples, replacement=True, generator=generator).mT
        return torch.stack(drawn).gather(0, which[None, ..., None].expand(1, *drawn[0].shape))[0]


def _score(energy: Any, labels: Tensor) -> Tensor:
    """Return the log-potential of labels; for energies with hidden units, summed over the hidden units."""
    return -energy.free_energy(labels) if isinstance(energy, BipartiteEnergy) else energy.score(labels)
