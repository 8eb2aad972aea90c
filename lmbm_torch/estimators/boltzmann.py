"""Large-margin Boltzmann machines as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from lmbm_torch.checks import check_count, check_labels
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy, TiedCliques
from lmbm_torch.estimators.base import available_device, warn_unless_reached
from lmbm_torch.estimators.decoded import DecodedClassifier
from lmbm_torch.estimators.network import label_tensor
from lmbm_torch.fitting.dual import dual_problem, fit_dual
from lmbm_torch.inference import exact, mean_field
from lmbm_torch.inference.results import Decoding, Marginals
from lmbm_torch.losses.bounds import error_bound, undirected_threshold
from lmbm_torch.losses.hinge import local_hinge
from lmbm_torch.models import BoltzmannMachine

# Enumeration of 2^14 labellings takes less than 0.1 ms an instance, an integer programme several.
MAX_ENUMERATED_LABELS = 14


class LMBMClassifier(DecodedClassifier):
    """A large-margin Boltzmann machine (large_margin_boltzmann_machines_2009).

    Training minimises ½ Σ_j η_j w_j² + C Σ_l Σ_i [γ − m_il]_+, intercepts regularised like other weights,
    with η_j = ``coupling_penalty`` for weights of two or more labels and 1 for the others; prediction is the
    labelling of least hinge loss Σ_i [γ − m_i]_+ (problem 3.4), not the most probable one.

    Args:
        C: weight of the losses, U in the paper.
        coupling_penalty: η0 > 0. The paper's plain LMBM, its "η0 = 0", is 1 here; its LMBMr is 5 and more.
            Classes exclude each other, so that cheap couplings alone may meet every margin: take 100 or more.
        margin: γ.
        cliques: ``"pairwise"``, or sets of labels, or tied cliques, with ``groups`` and ``clique_features``
            as for :class:`~lmbm_torch.models.BoltzmannMachine`.
        decoder: ``"exact"`` (enumeration), ``"integer_program"``, ``"lp_relaxation"`` (rounded), or
            ``"auto"``: enumeration up to 14 labels or where a clique has three or more labels, which the
            programmes do not take, else the integer programme.
        solver: ``"proximal_newton"``, or ``"dual_coordinate"``, the paper's: slower by far where labels are
            coupled, but it needs no matrix of instances.
        tol: relative duality gap at which training ends.
        max_iter: passes of the solver at which training ends, reached or not: a ConvergenceWarning tells.
        device: where predictions are computed, such as ``"cpu"`` or ``"cuda"``; training is on the CPU.
        random_state: of the coordinate solver's order of visits.

    Attributes:
        coef_: (labels, features); intercept_: (labels,).
        clique_coef_: one weight for each clique, or group of them.
        objective_: the value of what training minimises; duality_gap_: relative to it.
        n_iter_: passes of the solver.
        mean_loss_: the mean hinge loss of the training instances.
        threshold_: T, the least loss of a training instance that is decoded wrongly (Remark 4.2); 0 says
            nothing.
        error_bound_: mean_loss_ / T, at most 1: no larger share of the training instances is decoded wrongly
            (Theorem 4.1), if exactly; 1 for the rounded relaxation, of which nothing is known.
        classes_: the classes; a list of one [0, 1] per label for label matrices.
    """

    cliques: TiedCliques | Sequence[Sequence[int]] | str

    def __init__(
        self,
        C=1.0,
        *,
        coupling_penalty=10.0,
        margin=1.0,
        cliques="pairwise",
        groups=None,
        clique_features=None,
        decoder="auto",
        solver="proximal_newton",
        tol=1e-3,
        max_iter=1000,
        device="cpu",
        random_state=None,
    ):
        self.C = C
        self.coupling_penalty = coupling_penalty
        self.margin = margin
        self.cliques = cliques
        self.groups = groups
        self.clique_features = clique_features
        self.decoder = decoder
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """Learn from features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: {0, 1}, complete; or one class per instance.
            sample_weight: (instances,), multiplies C.

        Raises:
            ValueError: a setting or an input that is not as described; the message names it.
        """
        check_count("max_iter", self.max_iter)
        device = available_device(self.device)
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        check_labels("y", labels)
        num_labels = labels.shape[1]
        model = BoltzmannMachine(
            self.n_features_in_, num_labels, self.cliques, self.groups, self.clique_features
        ).double()
        self._decoder(num_labels, model.cliques.largest)
        problem = dual_problem(
            model,
            X,
            labels,
            C=self.C,
            margin=self.margin,
            coupling_penalty=self.coupling_penalty,
            sample_weight=sample_weight,
            solver=self.solver,
            seed=int(check_random_state(self.random_state).randint(2**31)),
        )
        state = fit_dual(problem, tol=self.tol, max_iter=self.max_iter)
        features, self.clique_coef_ = state.weights
        self.coef_, self.intercept_ = features[:-1].T.copy(), features[-1].copy()
        self.objective_, self.duality_gap_, self.n_iter_ = state.primal, state.gap, state.num_iters
        warn_unless_reached(self, "max_iter", state.gap)
        self.model_ = model.to(device)
        self._report(X, labels)
        return self

    def decode(self, X, known=None) -> Decoding:
        """The labelling of least hinge loss, with its loss as objective and the decoder's bound on it.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.
        """
        energy = self.energy(X)
        if known is not None:
            known = label_tensor("known", known, energy, allow_missing=True).to(energy.dtype)
        decode = self._decoder(energy.num_labels, self.model_.cliques.largest)
        return decode(energy, self.margin, known=known)

    def marginals(self, X) -> Marginals:
        """P(y_i = 1 | x): exact for up to 20 labels, beyond them those of the mean field.

        Raises:
            ValueError: more than 20 labels, and cliques of three or more of them.
        """
        energy = self.energy(X)
        if energy.num_labels <= exact.MAX_MARGINAL_LABELS:
            return exact.marginals(energy)
        if isinstance(energy, CliqueEnergy):
            raise ValueError(
                "cliques: expected two labels in each at most, or "
                f"{exact.MAX_MARGINAL_LABELS} labels in all, for probabilities, got cliques of "
                f"{self.model_.cliques.largest} of {energy.num_labels} labels"
            )
        return mean_field.marginals(energy)

    def log_prob(self, X, Y):
        """log P(Y | x) of whole label vectors, (instances,), by enumeration.

        Args:
            X: (instances, features), dense or CSR.
            Y: (instances, labels) in {0, 1}.

        Raises:
            ValueError: more than 22 labels.
        """
        energy = self.energy(X)
        labels = label_tensor("Y", Y, energy, allow_missing=False)
        return (energy.score(labels) - exact.log_partition(energy)).cpu().numpy()

    def energy(self, X) -> PairwiseEnergy | CliqueEnergy:
        """The Boltzmann machine's energy for instances (instances, features)."""
        return self._energy(self._validate_predict(X))

    @torch.no_grad()
    def _energy(self, X) -> PairwiseEnergy | CliqueEnergy:
        """That of validated instances, which have lost the names of a data frame's columns."""
        return self.model_(to_tensor(X).to(self.device, torch.float64))

    def _report(self, X, labels: np.ndarray) -> None:
        """What the training instances' losses prove."""
        energy = self._energy(X)
        loss = local_hinge(energy, torch.from_numpy(labels).to(self._device), self.margin)
        self.mean_loss_ = loss.mean().item()
        self.threshold_ = undirected_threshold(energy, self.margin).min().item()
        is_rounded = self.decoder == "lp_relaxation"
        self.error_bound_ = 1.0 if is_rounded else error_bound(self.mean_loss_, self.threshold_)

    def _decoder(self, num_labels: int, largest_clique: int) -> Callable[..., Decoding]:
        name = self.decoder
        if name == "auto":
            few = num_labels <= MAX_ENUMERATED_LABELS or largest_clique > 2
            name = "exact" if few else "integer_program"
        if name == "exact":
            return exact.decode_hinge
        if name in ("integer_program", "lp_relaxation") and largest_clique > 2:
            raise ValueError(
                f"decoder: expected 'exact' for cliques of {largest_clique} labels, got {name!r}"
            )
        # The solvers behind these are dependencies that enumeration does without.
        if name == "integer_program":
            from lmbm_torch.inference import integer_program

            return integer_program.decode_hinge
        if name == "lp_relaxation":
            from lmbm_torch.inference import lp_relaxation

            return lp_relaxation.decode_hinge
        raise ValueError(
            f"decoder: expected 'auto', 'exact', 'integer_program' or 'lp_relaxation', got {self.decoder!r}"
        )

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return (self.margin - self.energy(X).local_margins(codes)).clamp(min=0).sum(-1)

    def _code_log_prob(self, X, codes: Tensor) -> Tensor:
        return self.energy(X).score(codes)

    def _label_probability(self, X) -> np.ndarray:
        return self.marginals(X).labels.cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return torch.device(self.device)
