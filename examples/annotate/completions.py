"""What a model says of one row, given the labels that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.features import Features
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import marginals
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration.kernels import kernel_for
from lmbm_torch.inference.search import mixture
from lmbm_torch.prediction.answers import is_dense_network, is_machine, mixture_log_prob
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.trained import Decoder, with_settings
from lmbm_torch.shapes import Float

TOP_K = 3
# Some milliseconds.
LIKELY = 1000


@dataclass(frozen=True)
class Labelling:
    """A whole labelling that agrees with what is known.

    Args:
        labels: of {0, 1}, one for each label.
        objective: the decoder's.
        log_prob: log P(labels | known); None where it is not known.
    """

    labels: tuple[int, ...]
    objective: float
    log_prob: float | None

    def names(self, label_names: Sequence[str]) -> list[str]:
        """The names of the labels that are 1."""
        return [name for name, on in zip(label_names, self.labels, strict=True) if on]


@dataclass(frozen=True)
class Completion:
    """A model's answer for one row.

    Args:
        best: the joint answer first, then the next best; alone where the decoder lists no others.
        exact: whether the joint answer is proven to be the best.
        probabilities: P(y_i = 1 | known); None where they are not known.
        method: how these were found, or why there are none.
        effects: known label → the labels that it changes, with their values without it and with it.
    """

    best: tuple[Labelling, ...]
    exact: bool
    probabilities: tuple[float, ...] | None
    method: str
    effects: dict[int, dict[int, tuple[int, int]]]


@dataclass(frozen=True)
class Completer:
    """A model that completes labels.

    Args:
        saved: of one energy for a row.
        decoder: energy → decoding, which takes ``known``; None for the model's own.

    Raises:
        ValueError: a decoder that takes no known labels.
    """

    saved: Predictor
    decoder: Decoder | None = None

    @torch.no_grad()
    def complete(self, row: Features, known: Float[np.ndarray, " labels"]) -> Completion:
        """The answer for a row.

        Args:
            row: raw features (1, features).
            known: {0, 1, NaN}, NaN for a label that is not known.

        Raises:
            ValueError: an ensemble; what is known contradicts the rules.
        """
        energies = self.saved.energies(row)
        if len(energies) > 1:
            raise ValueError("model: expected one energy for a row, got an ensemble of several")
        (energy,) = energies
        given = torch.from_numpy(known[None]).to(energy.device, energy.dtype)
        found = self._best(energy, given)
        labels = found.labels.reshape(-1, len(known))
        probabilities, log_prob, method = self._probabilities(energies, given, labels)
        objectives = found.objective.reshape(-1).tolist()
        best = tuple(map(Labelling, map(tuple, labels.tolist()), objectives, log_prob))
        effects = self._effects(energy, given, labels[0])
        return Completion(best, bool(found.status.exact.all()), probabilities, method, effects)

    def _decode(self, energy: Any, **settings: Any) -> Any:
        if self.decoder is None:
            return self.saved.deciding(**settings)(energy)
        return with_settings(self.decoder, **settings)(energy)

    def _best(self, energy: Any, known: Tensor) -> Any:
        """Several labellings where the decoder lists them soon enough, else one."""
        free = int(known.isnan().sum())
        top_k = min(TOP_K, 2**free)
        # By enumeration that is a second for 22 labels.
        if top_k > 1 and (free <= LIMITS.click or not is_machine(energy)):
            try:
                return self._decode(energy, known=known, top_k=top_k)
            except ValueError:  # Rules may allow fewer, and not every decoder lists several.
                pass
        return self._decode(energy, known=known)

    def _effects(self, energy: Any, known: Tensor, answer: Tensor) -> dict[int, dict[int, tuple[int, int]]]:
        """What would be answered without each of the known labels, compared with what is."""
        places = (~known[0].isnan()).nonzero()[:, 0]
        if not len(places):
            return {}
        without = known.repeat(len(places), 1)
        without[torch.arange(len(places)), places] = torch.nan
        others = self._decode(energy.select(torch.zeros_like(places)), known=without).labels
        effects = {}
        for place, other in zip(places.tolist(), others, strict=True):
            changed = (other != answer).nonzero()[:, 0].tolist()
            effects[place] = {k: (int(other[k]), int(answer[k])) for k in changed if k != place}
        return effects

    def _probabilities(
        self, energies: list[Any], known: Tensor, labels: Tensor
    ) -> tuple[tuple[float, ...] | None, list[float | None], str]:
        """P(y_i = 1 | known), log P(labels | known) of each labelling, and how."""
        unknown: list[float | None] = [None] * len(labels)
        if not self.saved.has_probabilities:
            return None, unknown, "the model is no distribution"
        distributions = self.saved.calibrated(energies)
        energy, is_mixture = distributions[0], len(distributions) > 1
        is_free = bool(known.isnan().all())
        given = None if is_free else known
        # The same samples for each click, or probabilities would move that nobody touched.
        generator = torch.Generator(energy.device).manual_seed(0)
        matched = self.saved.inference
        free = int(known.isnan().sum())
        is_large = free > LIMITS.click and is_dense_network(energy)
        is_large &= free > LIMITS.marginals or not is_compiled(energy)
        if is_large and (is_mixture or (given is not None and self.saved.rules is None)):
            # With no mass to be left it is one pass of the full width, with the least that it can leave.
            limits = {"mass_left": 0, "max_labellings": LIKELY, "constraints": self.saved.rules}
            likely = mixture.marginals(distributions, known=given, **limits)
            error = float(likely.mass_left[0])
            words = f"by the likely labellings, none wrong by more than {error:.2g}"
            return tuple(likely.states[0, :, 1].tolist()), unknown, words
        limits = {"matched": matched, "generator": generator, "constraints": self.saved.rules}
        try:
            found = [marginals(each, known=given, **limits) for each in distributions]
        except ValueError as refused:
            return None, unknown, f"not known here: {refused}"
        # Members of a mixture are normalised: their sums are the probabilities of what is known.
        sums = torch.stack([each.log_partition[0] for each in found])
        probabilities = tuple((sums.softmax(0) @ torch.cat([each.labels for each in found])).tolist())
        if not all(bool(each.status.exact.all()) for each in found):
            return probabilities, unknown, found[0].method
        log_known = sums.logsumexp(0, keepdim=True) - math.log(len(found))
        log_prob = mixture_log_prob(distributions, labels[:, None], log_known)
        return probabilities, log_prob[:, 0].tolist(), found[0].method


def is_compiled(energy: Any) -> bool:
    """Return whether compiled code enumerates the marginals of an energy."""
    return isinstance(energy, DirectedEnergy) and kernel_for(energy) is not None
