"""Answers of an equal mixture of sigmoid belief networks, from the energies of its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import bayes, bayes_under_rules, mixture
from lmbm_torch.inference.results import Decoding, Marginals, Status

__all__ = ["DECODERS", "EXPECTED", "NetworkMixture", "hinge_losses", "max_labellings"]

NUM_SAMPLES = 1000
# Enumerated for an expected measure, of each member and instance, of 15 to 100 labels; flat distributions,
# such as hinge training gives where labels are many, would not be covered by many more either.
MAX_LABELLINGS = 1000
# The labelling of largest expected measure, by the measure's name.
EXPECTED = {"hamming": bayes.decode_hamming, "f1": bayes.decode_f1, "jaccard": bayes.decode_jaccard}
DECODERS = ("hinge", "exact_match", *EXPECTED)


def max_labellings(num_labels: int) -> int:
    """Return how many labellings to enumerate for an expected measure."""
    return bayes.affordable_labellings(num_labels, MAX_LABELLINGS)


def hinge_losses(energies: Sequence[Any], codes: Tensor, margin: float) -> Tensor:
    """Return the mean hinge loss over the members, (classes, instances), of vectors (classes, 1, labels)."""
    margins = torch.stack([energy.local_margins(codes) for energy in energies])
    return (margin - margins).clamp(min=0).sum(-1).mean(0)


@dataclass(frozen=True)
class NetworkMixture:
    """P(y | x) of an equal mixture of sigmoid belief networks, which may be a single one.

    Args:
        energies: of the members, calibrated where they are.
        draw_seed: draws the seed of the samples, where there are any.
    """

    energies: Sequence[DirectedEnergy]
    draw_seed: Callable[[], int]

    def decode(
        self,
        measure: str,
        known: Tensor | None,
        rules: Constraints | None,
        limits: Mapping[str, Any],
    ) -> Decoding:
        """Return the labellings of largest expected measure, ``"exact_match"`` or one in ``EXPECTED``.

        Args:
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
            limits: of :func:`~lmbm_torch.inference.mixture.decode`.
        """
        energies, most = self.energies, max_labellings(self.energies[0].num_labels)
        if rules is not None and measure == "exact_match" and len(energies) == 1:
            return inference.decode(energies[0], known=known, constraints=rules)
        if rules is not None and measure == "exact_match":
            return bayes_under_rules.decode_most_probable(energies, rules, known=known, max_labellings=most)
        if rules is not None:
            return bayes_under_rules.decode(energies, measure, rules, known=known, max_labellings=most)
        if measure == "exact_match":
            return mixture.decode(energies, known=known, **limits)
        settings: dict[str, Any] = {"num_samples": NUM_SAMPLES, "generator": self._generator()}
        return EXPECTED[measure](energies, known=known, max_labellings=most, **settings)

    def marginals(self) -> Marginals:
        """Return P(y_i = 1), exact for up to 20 labels or of few parents, else with its standard error.

        Of more labels with many parents it is the mean over 1,000 ancestral samples of each member.
        """
        generator = self._generator()
        found = [inference.marginals(energy, generator=generator) for energy in self.energies]
        return _mixed(cast(list[Marginals], found))

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return log P(labels), (instances,)."""
        return mixture.log_prob(self.energies, labels)

    def log_weights(self, codes: Tensor) -> Tensor:
        """Return log P(codes), (classes, instances), of label vectors (classes, 1, labels)."""
        return mixture.log_prob(self.energies, codes)

    def _generator(self) -> torch.Generator:
        return torch.Generator(self.energies[0].device).manual_seed(self.draw_seed())


def _mixed(members: Sequence[Marginals]) -> Marginals:
    """The marginals of the members' equal mixture, from independent estimates of theirs."""
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
