"""Structural support vector machines over label vectors as a scikit-learn classifier."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from lmbm_torch.checks import check_labels
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators.base import available_device, warn_unless_reached
from lmbm_torch.estimators.decoded import LabelVectorClassifier
from lmbm_torch.estimators.network import label_tensor
from lmbm_torch.fitting.dual import fit_dual, structural_problem
from lmbm_torch.inference import exact
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.solvers.structural.label_vectors import Decoder, decode_with, viterbi

# Enumeration of 2^14 labellings takes some 10 µs an instance, a linear programme 0.5 ms.
MAX_ENUMERATED_LABELS = 14


class StructuralSVMClassifier(LabelVectorClassifier):
    """A Boltzmann machine trained by the structured hinge (Tsochantaridis et al. 2004), decoded by MAP.

    Training minimises ½‖w‖² + C Σ_l max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)] over pairwise
    scores, intercepts regularised like other weights; prediction is the labelling of largest score. This is
    the peer of large_margin_boltzmann_machines_2009, section 7.

    Args:
        C: weight of the losses.
        graph: which labels are coupled: ``"full"`` (every two), ``"chain"`` (neighbouring columns), or a list
            of pairs.
        decoder: ``"exact"`` (enumeration), ``"viterbi"`` (dynamic programming, for the chain),
            ``"integer_program"``, ``"lp_relaxation"``, or ``"auto"``: viterbi for the chain, else enumeration
            up to 14 labels and the relaxation beyond. With the relaxation training solves an outer relaxation
            of the problem, to whose objective ``duality_gap_`` refers, and predictions are rounded. Or a
            function of your own, as :class:`~lmbm_torch.solvers.structural.label_vectors.Decoder` describes
            it.
        coupling_penalty: η, multiplies the couplings' squares in ‖w‖².
        tol: relative duality gap at which training ends.
        max_iter: the end of training, reached or not: a ConvergenceWarning tells.
        device: where predictions are computed, such as ``"cpu"`` or ``"cuda"``; training is on the CPU.
        random_state: of the solver's order of visits.

    Attributes:
        coef_: (labels, features); intercept_: (labels,).
        pair_coef_: (labels, labels), symmetric: the couplings.
        objective_: the value of what training minimises; duality_gap_: relative to it.
        n_iter_: passes of the solver.
        classes_: the classes; a list of one [0, 1] per label for label matrices.
    """

    graph: str | Sequence[tuple[int, int]]
    decoder: str | Decoder

    def __init__(
        self,
        C=1.0,
        *,
        graph="full",
        decoder="auto",
        coupling_penalty=1.0,
        tol=1e-3,
        max_iter=200,
        device="cpu",
        random_state=None,
    ):
        self.C = C
        self.graph = graph
        self.decoder = decoder
        self.coupling_penalty = coupling_penalty
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
            ValueError: a setting or an input that is not as described, a decoder's answer among them; the
                message names it.
            TypeError: a decoder that is neither a name nor a function, or returns no Decoding.
        """
        device = available_device(self.device)
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        check_labels("y", labels)
        num_labels = labels.shape[1]
        pairs = self._pairs(num_labels)
        model = BoltzmannMachine(self.n_features_in_, num_labels, cliques=pairs).double()
        problem = structural_problem(
            model,
            X,
            labels,
            self._decoder(num_labels),
            C=self.C,
            coupling_penalty=self.coupling_penalty,
            sample_weight=sample_weight,
            seed=int(check_random_state(self.random_state).randint(2**31)),
        )
        state = fit_dual(problem, tol=self.tol, max_iter=self.max_iter)
        features, couplings = state.weights
        self.coef_, self.intercept_ = features[:, :-1].copy(), features[:, -1].copy()
        self.objective_, self.duality_gap_, self.n_iter_ = state.primal, state.gap, state.num_iters
        warn_unless_reached(self, "max_iter", state.gap)
        self.model_ = model.to(device)
        self.pair_coef_ = np.zeros((num_labels, num_labels))
        for (first, second), weight in zip(pairs, couplings.tolist(), strict=True):
            self.pair_coef_[first, second] = self.pair_coef_[second, first] = weight
        return self

    def decode(self, X, known=None) -> Decoding:
        """The labelling of largest score, with its score as objective and the decoder's bound on it.

        Args:
            X: (instances, features), dense or CSR.
            known: (instances, labels) of {0, 1, NaN}: outputs that are given already.

        Raises:
            ValueError: ``known`` of another shape or with other values, or for a decoder that takes none.
        """
        energy = self.energy(X)
        decoder = self._decoder(energy.num_labels)
        if known is None:
            return decode_with(decoder, energy)
        if "known" not in inspect.signature(decoder).parameters:
            raise ValueError(f"known: expected None, for the decoder takes no known labels: {decoder!r}")
        known = label_tensor("known", known, energy, allow_missing=True).to(energy.dtype)
        return decode_with(decoder, energy, known=known)

    @torch.no_grad()
    def energy(self, X) -> PairwiseEnergy:
        """The Boltzmann machine's energy for instances (instances, features)."""
        features = to_tensor(self._validate_predict(X))
        return self.model_(features.to(self.device, torch.float64))

    def _pairs(self, num_labels: int) -> list[tuple[int, int]]:
        if isinstance(self.graph, str):
            if self.graph == "full":
                return list(combinations(range(num_labels), 2))
            if self.graph == "chain":
                return list(pairwise(range(num_labels)))
            raise ValueError(f"graph: expected 'full', 'chain' or a list of pairs, got {self.graph!r}")
        return list(self.graph)

    def _decoder(self, num_labels: int) -> Decoder:
        name = self.decoder
        if callable(name):
            return name
        if not isinstance(name, str):
            raise TypeError(f"decoder: expected a name or a function of an energy, got {name!r}")
        if name == "auto":
            chain = isinstance(self.graph, str) and self.graph == "chain"
            few = "exact" if num_labels <= MAX_ENUMERATED_LABELS else "lp_relaxation"
            name = "viterbi" if chain else few
        if name == "exact":
            return exact.decode
        if name == "viterbi":
            return viterbi
        # The solvers behind these are dependencies that the other decoders do without.
        if name == "integer_program":
            from lmbm_torch.inference import integer_program

            return integer_program.decode
        if name == "lp_relaxation":
            from lmbm_torch.inference import lp_relaxation

            return lp_relaxation.decode
        raise ValueError(
            "decoder: expected 'auto', 'exact', 'viterbi', 'integer_program', 'lp_relaxation' or a function, "
            f"got {name!r}"
        )

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return -self.energy(X).score(codes)

    @property
    def _device(self) -> torch.device:
        return torch.device(self.device)
