"""Predictions of an equal mixture of sigmoid belief networks, from the members' energies."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmbm_torch import inference
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators.allowed_distribution import AllowedDistribution
from lmbm_torch.estimators.base import Rows, level_of_caller
from lmbm_torch.estimators.calls import of_label_columns, watched
from lmbm_torch.estimators.decoding import ProbabilisticClassifier
from lmbm_torch.estimators.protocol import Capabilities
from lmbm_torch.estimators.settings import SHARED, Constraints, StrOptions, check_parameters
from lmbm_torch.estimators.targets import known_tensor, label_tensor
from lmbm_torch.inference import bayes, bayes_under_rules, mixture
from lmbm_torch.inference.results import Decoding, Marginals, Status

NUM_SAMPLES = 1000
# Enumerated for an expected measure, of each member and instance, of 15 to 100 labels; flat distributions,
# such as hinge training gives where labels are many, would not be covered by many more either.
MAX_LABELLINGS = 1000
# The labelling of largest expected measure, by the measure's name.
DECODERS = {"hamming": bayes.decode_hamming, "f1": bayes.decode_f1, "jaccard": bayes.decode_jaccard}


class NetworkClassifier(ProbabilisticClassifier):
    """Predictions of an equal mixture of sigmoid belief networks, which may be a single one."""

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "decoder": [StrOptions({"hinge", "exact_match", *DECODERS})],
    }

    _hinge_margin: float
    node_limit: int | None
    decoder: str = "hinge"

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`~lmbm_torch.estimators.protocol.Capabilities`."""
        return Capabilities(
            objective=self.decoder,
            predicts_by_decode=self.decoder == "hinge",
            searches_under_rules=self._searches_under_rules,
            has_probabilities=True,
            restricts_probabilities=True,
            margin=self._hinge_margin,
            limits={"node_limit": self.node_limit},
        )

    # Whether the search behind ``decode`` has rules inside.
    _searches_under_rules: bool = True

    def _effects(self, rows: np.ndarray) -> np.ndarray:
        # Probabilities of many labels would be sampled.
        return np.mean([energy.unary.cpu().numpy() for energy in self.energies(rows)], 0)

    @property
    def _limits(self) -> dict[str, Any]:
        """The settings that may end a search before its proof, by their names in :func:`mixture.decode`."""
        return {"node_limit": self.node_limit}

    @property
    def _max_labellings(self) -> int:
        """Those to enumerate for an expected measure."""
        return bayes.affordable_labellings(len(self.classes_), MAX_LABELLINGS)

    @watched
    @of_label_columns
    def predict(self, X: Rows, known: ArrayLike | None = None) -> np.ndarray:
        """Labels (instances, labels) in {0, 1}, or classes where ``fit`` was given classes.

        Warns of searches that were ended before their proof; :meth:`predict_decoding` says which.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already; label matrices only.
        """
        check_is_fitted(self)
        if self.binarizer_ is not None:
            return super().predict(X, known)
        decoding = self.predict_decoding(X, known)
        self._warn_of_ends(decoding.status.converged.cpu().numpy())
        return self._values(decoding.labels.cpu().numpy())

    def _warn_of_ends(self, converged: np.ndarray) -> None:
        """Warn if searches were ended before their proof: those that are not ``converged``, (instances,)."""
        if converged.all():
            return
        limits = " or ".join(f"{name}={value}" for name, value in self._limits.items())
        if self.decoder in DECODERS:
            limits = f"the limit of {self._max_labellings} labellings"
        warnings.warn(
            f"{(~converged).sum()} of {len(converged)} searches were ended by {limits}; their labels are the "
            "best found, not proven optimal",
            ConvergenceWarning,
            stacklevel=level_of_caller(),
        )

    def predict_decoding(self, X, known=None) -> Decoding:
        """The labels of :meth:`predict` for label matrices; their objective is what ``decoder`` names."""
        if self.decoder == "hinge":
            return self.decode(X, known=known)
        check_parameters(self)
        energies, rules = self._distributions(X), self._rules()
        known = known_tensor(known, energies[0])
        if rules is not None and self.decoder == "exact_match" and len(energies) == 1:
            return inference.decode(energies[0], known=known, constraints=rules)
        if rules is not None:
            limits = {"max_labellings": self._max_labellings}
            if self.decoder == "exact_match":
                return bayes_under_rules.decode_most_probable(energies, rules, known=known, **limits)
            return bayes_under_rules.decode(energies, self.decoder, rules, known=known, **limits)
        if self.decoder == "exact_match":
            return mixture.decode(energies, known=known, **self._limits)
        return DECODERS[self.decoder](
            energies,
            known=known,
            max_labellings=self._max_labellings,
            num_samples=NUM_SAMPLES,
            generator=self._generator(energies[0]),
        )

    @watched
    @of_label_columns
    def marginals(self, X) -> Marginals:
        """P(y_i = 1 | x), exact for up to 20 labels or of few parents, with its standard error where sampled.

        Of more labels with many parents it is the mean over 1,000 ancestral samples of each member. Under
        ``constraints`` it is that given that they are obeyed, exactly.

        Raises:
            ValueError: with constraints, many labels of many parents, see
                :func:`lmbm_torch.inference.log_partition`.
        """
        if (allowed := self._allowed(X)) is not None:
            return allowed.marginals()
        energies = self._distributions(X)
        generator = self._generator(energies[0])
        found = [inference.marginals(energy, generator=generator) for energy in energies]
        return _mixed(cast(list[Marginals], found))

    @watched
    @of_label_columns
    @torch.no_grad()
    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,).

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.
        """
        energies, rules = self._distributions(X), self._rules()
        labels = label_tensor("Y", Y, energies[0])
        if rules is not None:
            return AllowedDistribution(energies, rules).log_prob(labels).cpu().numpy()
        return mixture.log_prob(energies, labels).cpu().numpy()

    def _generator(self, energy: DirectedEnergy) -> torch.Generator:
        return torch.Generator(energy.device).manual_seed(self._seed())

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        margins = torch.stack([energy.local_margins(codes) for energy in self.energies(X)])
        return (self._hinge_margin - margins).clamp(min=0).sum(-1).mean(0)

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return mixture.log_prob(self._distributions(X), codes)


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
