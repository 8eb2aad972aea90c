"""Structural support vector machines over label vectors as a scikit-learn classifier."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from operator import attrgetter
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from lmbm_torch import constraints as rules_of
from lmbm_torch.checks import check_not_negative, check_shape
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators.common.base import Rows
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.decoders.calibration import learned_calibration
from lmbm_torch.estimators.common.decoders.completion import learn_along
from lmbm_torch.estimators.common.decoders.decoding import DecodingClassifier, routine, several
from lmbm_torch.estimators.common.settings import (
    CALIBRATE,
    CLASS_WEIGHT,
    RELATIVE_PENALTY,
    SHARED,
    Constraints,
    StrOptions,
)
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.completion import observed_weights
from lmbm_torch.fitting.dual import DualProblem, Path, fit_dual, structural_problem, summed_problem
from lmbm_torch.fitting.recipe import are_steep, have_like_units
from lmbm_torch.inference import decode
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, replaced
from lmbm_torch.inference.graphs.elimination import is_narrow
from lmbm_torch.inference.search.undirected_branch_and_bound import decode_by_flips
from lmbm_torch.inference.under_rules import constrained
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import frank_wolfe, smoothing
from lmbm_torch.solvers.structural.frank_wolfe import FrankWolfeState
from lmbm_torch.solvers.structural.label_vectors import (
    LOSSES,
    MOST_LABELS,
    RESCALINGS,
    Decoder,
    LabelVectorOracle,
    decode_with,
    viterbi,
)
from lmbm_torch.solvers.structural.smoothing import SmoothedState

# Decoders that handle rules as linear constraints of an optimisation problem.
WITH_ROWS = ("integer_program", "lp_relaxation")
# Number of nodes of short searches in early training: enough for good label sets, too few for proofs.
FEW_NODES = 300
# The solver's ``known_share`` while searches are short: large, because short searches may be frequent.
CLAIMED_SHARE = 0.6
# Relative duality gap at which short searches are followed by longer searches with proofs. If most label sets
# cannot be proven, a smaller gap doubles the time without gain (scripts/bench/structural_labels.py).
CLAIMED_GAP = 0.01
# EXACT: exact decoders. For these decoders and up to SUMMED labels, smoothed hinges are used if feature
# columns have unlike units, or if losses are steep and there are at least ROWS_A_COLUMN rows per column.
EXACT, SUMMED, ROWS_A_COLUMN = ("auto", "exact", "viterbi"), 14, 15
ITERATIONS_A_PASS = smoothing.ITERATIONS_AT_ONCE
# If L-BFGS on smoothed hinges ends above the tolerance, Frank–Wolfe is tried for TRIED passes, or for VISITS
# steps if these are more, and continues if the gap is then below NEARER times the gap of L-BFGS.
TRIED, VISITS, NEARER = 20, 30_000, 0.95
# With up to PROVEN labels, searches nearly always prove optimality. With more labels the gap is checked every
# CERTIFYING passes, and training ends if the gap is above FALLEN times the gap before.
PROVEN, CERTIFYING, FALLEN = 20, 3, 0.95
# If a smaller share of the label sets is proven, only one more pass is made, because the gap cannot close.
MOSTLY_PROVEN = 0.5
# Number of search nodes, for all unproven examples of a pass together, in a second search: some seconds.
NODES_FOR_OPEN = 10**8


@dataclass(eq=False)
class _Searches:
    """A decoder that searches again, with more nodes, if a label set is not proven best.

    Unproven label sets would keep the duality gap open. If most label sets are unproven, there is no second
    search, because the gap would stay open even with more nodes.

    Args:
        rules: rules that label sets obey; None without rules.
        proven: the share of proven label sets in the last call.
    """

    rules: rules_of.Constraints | None
    proven: float = 1.0

    def __call__(self, energy: PairwiseEnergy, known: Tensor | None = None) -> Decoding:
        found = decode(energy, known=known, constraints=self.rules)
        (rows,) = (~found.status.exact).nonzero(as_tuple=True)
        limit = NODES_FOR_OPEN // max(len(rows), 1)
        if 0 < len(rows) <= (1 - MOSTLY_PROVEN) * energy.batch_size and limit > LIMITS.machine_nodes:
            part = None if known is None else known[rows]
            again = decode(energy.select(rows), known=part, node_limit=limit, constraints=self.rules)
            found = replaced(found, rows, again)
        self.proven = float(found.status.exact.double().mean())
        return found


def _claimed(energy: PairwiseEnergy, rules: rules_of.Constraints | None) -> Decoding:
    """Decode by short searches, and mark the label sets as optimal without proof, for early training."""
    if rules is not None or (energy.num_labels > LIMITS.narrow and is_narrow(energy)):
        found = decode(energy, node_limit=FEW_NODES, constraints=rules)
    else:
        found = decode_by_flips(energy)
    return replace(found, bound=found.objective)


def _is_calibrated(estimator: StructuralSVMClassifier) -> bool:
    """Check that ``calibrate`` is set, and raise AttributeError otherwise, as scikit-learn does."""
    if not estimator.calibrate:
        raise AttributeError("StructuralSVMClassifier has probabilities only with calibrate=True")
    return True


class StructuralSVMClassifier(DecodingClassifier[PairwiseEnergy]):
    """A structural SVM: a Boltzmann machine trained by the structured hinge (Tsochantaridis et al. 2004).

    Training minimises ½‖w‖² + C Σ_l max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)] with pairwise
    scores; intercepts are regularised like other weights. The prediction is the label set with the largest
    score. This is the baseline of large_margin_boltzmann_machines_2009, section 7. The solver is
    block-coordinate Frank–Wolfe. For few labels, if columns have unlike units or C is large, L-BFGS on
    smoothed hinges is tried first; if L-BFGS ends above ``tol``, Frank–Wolfe is tried, too, and the better
    solution is kept. With ``constraints``, training and prediction maximise over the label sets that obey the
    rules; in training, the true labels y_l are included even if they break a rule.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`.
        graph: coupled pairs: ``"full"`` (all pairs), ``"chain"`` (neighbouring columns), or a list of pairs.
        decoder: ``"exact"`` (enumeration), ``"viterbi"`` (dynamic programming, for the chain),
            ``"integer_program"``, ``"lp_relaxation"``, or ``"auto"``: viterbi for the chain, otherwise
            :func:`lmbm_torch.inference.decode`, whose results are proven unless a search over many labels
            reaches the node limit (``duality_gap_`` allows for unproven results). With ``"lp_relaxation"``,
            training solves a relaxed problem, to which ``duality_gap_`` refers, and predictions are rounded.
            Or a function, see :class:`~lmbm_torch.solvers.structural.label_vectors.Decoder`.
        loss: the loss Δ in training: ``"hamming"``; a cost for each label (labels,) in the Hamming loss;
            ``"zero_one"``; or ``"f1"``, 1 − F1 of the label set. F1 and slack rescaling enumerate the label
            sets of up to 14 labels; the 0/1 loss needs a decoder that takes known labels. Rules need the
            Hamming loss and margin rescaling.
        rescaling: ``"margin"``, as above; or ``"slack"``, Δ (1 + score(x_l, y) − score(x_l, y_l)).
        coupling_penalty: η, a factor on the squared couplings in ‖w‖².
        tol: relative duality gap at which training ends.
        max_iter: number of passes (five iterations of L-BFGS count as a pass) at which training ends even
            above ``tol``, with a ConvergenceWarning.
        class_weight: cost of a wrong label in the Hamming loss, by true value: ``"balanced"`` (instances / (2
            · instances with the value), for each label), weights by value {0: …, 1: …}, or a sequence with a
            setting for each label. If ``fit`` has classes, a factor on C.
        calibrate: whether to learn probabilities, see
            :mod:`~lmbm_torch.estimators.common.decoders.calibration`; otherwise there are no probabilities.
        device: device of predictions except searches, such as ``"cuda"``; training is on the CPU.
        verbose: 1 for a progress bar with the duality gap (needs rich); 0 for no bar.
        random_state: seed for the order in which the solver visits instances.
        constraints: rules that all predictions obey, as text or objects (:mod:`lmbm_torch.constraints`). In
            training, label sets that break rules do not compete with the true labels.

    Attributes:
        C_: the weight of the losses.
        feature_shift_, feature_scale_: (features,), training takes (X − shift) / scale; 0, 1 if unscaled.
        coef_: (labels, features), weights of the features.
        intercept_: (labels,).
        pair_coef_: (labels, labels), symmetric: the couplings.
        objective_: the value of the training objective.
        duality_gap_: the duality gap relative to ``objective_``.
        n_iter_: passes of Frank–Wolfe, or iterations of L-BFGS, since the solver's last start.
        calibration_: the :class:`~lmbm_torch.calibration.scales.Calibration`; None without calibration.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.

    Examples:
        >>> from lmbm_torch.estimators import StructuralSVMClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [[0, 0], [0, 1], [1, 1], [1, 1]]
        >>> StructuralSVMClassifier(random_state=0).fit(X, y).predict([[2.5]])
        array([[1, 1]])
    """

    _accepted: ClassVar[Constraints] = {
        **SHARED,
        "C": RELATIVE_PENALTY,
        "calibrate": CALIBRATE,
        "class_weight": CLASS_WEIGHT,
        "graph": [StrOptions({"full", "chain"}), "array-like"],
        "loss": [StrOptions({*LOSSES}), "array-like"],
        "rescaling": [StrOptions({*RESCALINGS})],
        "decoder": [StrOptions({"auto", "exact", "viterbi", "integer_program", "lp_relaxation"}), callable],
    }

    graph: str | Sequence[tuple[int, int]]
    decoder: str | Decoder

    def __init__(
        self,
        C: float | str = recipe.C,
        *,
        graph="full",
        decoder="auto",
        loss="hamming",
        rescaling="margin",
        coupling_penalty=1.0,
        tol=1e-3,
        max_iter=200,
        class_weight=None,
        calibrate=False,
        device="cpu",
        verbose=0,
        random_state=None,
        constraints=None,
    ):
        self.C = C
        self.graph = graph
        self.decoder = decoder
        self.loss = loss
        self.rescaling = rescaling
        self.coupling_penalty = coupling_penalty
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.device = device
        self.verbose = verbose
        self.random_state = random_state
        self.constraints = constraints

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features), dense or CSR, and labels (instances, labels).

        Args:
            X: finite features.
            y: labels in {0, 1}, or NaN for missing labels, which cost nothing and are replaced by the
                machine's predictions (:mod:`~lmbm_torch.estimators.common.decoders.completion`); the decoder
                must then take known labels. Or a class for each instance.
            sample_weight: (instances,), factors on C.

        Raises:
            ValueError: a parameter or input is invalid, or a decoder returns an invalid result.
            TypeError: the decoder is neither a name nor a function, or does not return a Decoding.
        """
        return self._fit_along(Path(), X, y, sample_weight)

    def _fit_along(self, path: Path, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Fit with a larger C than the last fit on the path, starting from the last solution."""
        X, labels, weight = self._validate_fit(X, y, sample_weight, allow_missing=True)
        if self.binarizer_ is None:
            losses, costs = weight, observed_weights(self._label_weights(labels, None), labels)
        else:
            # With classes, class weights scale the loss of an instance rather than the costs of labels.
            losses, costs = self._class_weights(labels, weight), None
        if np.isnan(labels).any():
            self._check_known("y", "no missing labels", labels.shape[1])
        loss, costs = self._task_loss(labels.shape, costs)
        learn_along(self, path, partial(self._learn, X, losses, costs, loss), X, labels, weight)
        self.calibration_ = learned_calibration(self, self.calibrate, X, labels, weight)
        return self

    def _task_loss(self, shape: tuple[int, ...], costs: np.ndarray | None) -> tuple[str, np.ndarray | None]:
        """Return the name of the loss, and the cost of each wrong label, (instances, labels), or None."""
        name = self.loss if isinstance(self.loss, str) else "hamming"
        if not isinstance(self.loss, str):
            given = np.asarray(self.loss, np.float64)
            check_shape("loss", given, shape[1])
            check_not_negative("loss: least cost", float(given.min()))
            costs = np.broadcast_to(given, shape) * (1 if costs is None else costs)
        if (name, self.rescaling) != ("hamming", "margin"):
            if name != "hamming" and costs is not None:
                raise ValueError(f"loss: expected 'hamming' for class_weight or missing labels, got {name!r}")
            if self._rules() is not None:
                raise ValueError(
                    f"constraints: expected None with loss={name!r} and {self.rescaling!r} rescaling"
                )
            if name == "zero_one" and shape[1] > MOST_LABELS:
                self._check_known("loss", "another than 'zero_one'", shape[1])
        return name, None if costs is None else np.ascontiguousarray(costs)

    def _learn(
        self,
        X: Features,
        sample_weight: np.ndarray | None,
        costs: np.ndarray | None,
        loss: str,
        path: Path,
        labels: np.ndarray,
    ) -> None:
        """Train on complete labels, and set the fitted attributes."""
        num_labels = labels.shape[1]
        pairs: Any = self.graph
        if isinstance(pairs, str):
            places = range(num_labels)
            pairs = combinations(places, 2) if pairs == "full" else pairwise(places)
        pairs = list(pairs)
        with torch.device("cpu"):
            model = BoltzmannMachine(self.n_features_in_, num_labels, cliques=pairs).double()
        oracle = self._oracle(num_labels)
        features: Any = self._scaled(X, sample_weight)
        problem = structural_problem(
            model,
            features,
            labels,
            oracle,
            C=self.C_,
            coupling_penalty=self.coupling_penalty,
            sample_weight=sample_weight,
            seed=self._seed(),
            costs=costs,
            loss=loss,
            rescaling=self.rescaling,
        )
        is_summed = (
            isinstance(problem.problem.oracle, LabelVectorOracle)
            and self.decoder in EXACT
            and self._rules() is None
            and num_labels <= SUMMED
            and _suits_sums(features, self.C_)
        )
        state = self._learn_by_sums(problem, path) if is_summed else self._learn_by_labellings(problem, path)
        path.C, path.state = self.C_, state
        model.undo_scaling(self.feature_scale_, self.feature_shift_)
        _, couplings = state.weights
        self.coef_ = self._array(model.feature_weight)
        self.intercept_ = self._array(model.bias)
        self._report(state)
        self.model_ = model.to(self._device)
        self.pair_coef_ = np.zeros((num_labels, num_labels))
        for (first, second), weight in zip(pairs, couplings.tolist(), strict=True):
            self.pair_coef_[first, second] = self.pair_coef_[second, first] = weight

    def _learn_by_sums(self, dual: DualProblem, path: Path) -> SmoothedState | FrankWolfeState:
        """Train by L-BFGS on smoothed hinges; if the gap stays above ``tol``, try Frank–Wolfe, too."""
        summed, start = summed_problem(dual), None
        if isinstance(path.state, SmoothedState):
            start = smoothing.resumed(summed.problem, path.state)
        most = ITERATIONS_A_PASS * self.max_iter
        with self._progress() as progress:
            state = fit_dual(summed, tol=self.tol, max_iter=most, start=start, progress=progress)
        if state.gap <= self.tol:
            return state
        other = self._learn_by_labellings(dual, path, most=max(TRIED, VISITS // dual.problem.num_examples))
        if self.tol < other.gap < NEARER * state.gap:
            other = self._learn_by_labellings(dual, Path(self.C_, other))
        return min(state, other, key=attrgetter("gap"))

    def _learn_by_labellings(self, problem: DualProblem, path: Path, most: float = np.inf) -> FrankWolfeState:
        """Train by Frank–Wolfe for at most ``most`` passes, and return the last state."""
        oracle, num_labels = problem.problem.oracle.decoder, problem.problem.num_outputs
        start = None
        if isinstance(path.state, FrankWolfeState) and path.C is not None:
            start = frank_wolfe.scaled(problem.problem, path.state, self.C_ / path.C)
        most = int(min(self.max_iter, most))
        passes, more = most, True
        is_decomposed = isinstance(problem.problem.oracle, LabelVectorOracle)
        if is_decomposed and isinstance(oracle, _Searches) and num_labels > LIMITS.enumeration:
            for tol in sorted({max(self.tol, CLAIMED_GAP), self.tol}, reverse=True):
                if more:
                    start = self._claimed_solution(problem, start, tol)
                    more = oracle.proven >= MOSTLY_PROVEN
            passes = min(passes, CERTIFYING if more else 1) if num_labels > PROVEN else passes
        with self._progress() as progress:
            fit = partial(fit_dual, problem, tol=self.tol, max_iter=passes, progress=progress)
            last, state = np.inf, fit(start=start)
            while more and self.tol < state.gap <= FALLEN * last and state.num_iters < most:
                last, state = state.gap, fit(start=state)
        return state

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            objective="score",
            minimises=False,
            searches_under_rules=self._searches_under_rules,
            has_probabilities=bool(self.calibrate),
            restricts_probabilities=bool(self.calibrate),
        )

    @property
    def _searches_under_rules(self) -> bool:
        return self.decoder == "auto" and not self._is_chain()

    def _decode_energy(
        self,
        energy: PairwiseEnergy,
        known: Tensor | None = None,
        top_k: int = 1,
        rules: rules_of.Constraints | None = None,
    ) -> Decoding:
        if rules is not None and not self._searches_under_rules:
            return constrained.decode(energy, rules, self._answer, known=known, top_k=top_k)
        if rules is not None:
            return decode(energy, known=known, constraints=rules, top_k=top_k)
        if few := several(top_k, self.decoder, ("auto", "exact")):
            return decode(energy, known=known, **few)
        return self._answer(energy, known)

    def _answer(self, energy: PairwiseEnergy, known: Tensor | None) -> Decoding:
        """Decode by ``decoder``, without rules, given the known labels."""
        decoder = self._decoder(energy.num_labels)
        if known is None:
            return decode_with(decoder, energy)
        self._check_known("known", "None", energy.num_labels)
        return decode_with(decoder, energy, known=known)

    def _oracle(self, num_labels: int) -> Decoder:
        """Return the decoder for training, which only returns label sets that obey the rules."""
        rules = self._rules()
        if self._searches_under_rules:
            return _Searches(rules)
        decoder: Any = self._decoder(num_labels)
        if rules is None:
            return decoder
        if self.decoder in WITH_ROWS:
            return partial(decoder, constraints=rules)
        self._check_known("constraints", "None", num_labels)
        return partial(constrained.decode, constraints=rules, routine=self._answer)

    def _check_known(self, name: str, expected: str, num_labels: int) -> None:
        """Check that the decoder takes known labels, and raise ValueError otherwise."""
        decoder = self._decoder(num_labels)
        if "known" not in inspect.signature(decoder).parameters:
            raise ValueError(
                f"{name}: expected {expected}, because the decoder takes no known labels: {decoder!r}"
            )

    marginals: Any = available_if(_is_calibrated)(DecodingClassifier.marginals)
    log_prob: Any = available_if(_is_calibrated)(DecodingClassifier.log_prob)
    predict_proba: Any = available_if(_is_calibrated)(DecodingClassifier.predict_proba)

    def _claimed_solution(self, dual: DualProblem, start: Any, tol: float) -> Any:
        """Train with short, unproven searches to a gap of ``tol``; then compute the state with proofs."""
        oracle = replace(dual.problem.oracle, decoder=partial(_claimed, rules=self._rules()))
        easier = replace(dual, problem=replace(dual.problem, oracle=oracle))
        left = max(self.max_iter - (0 if start is None else start.num_iters), 1)
        settings = {**easier.settings, "known_share": CLAIMED_SHARE, "start": start}
        with self._progress() as progress:
            limits = {"tol": tol, "max_iter": left, "progress": progress}
            state = run(easier.solver, easier.problem, **limits, **settings)
        return dual.update(state, self.tol)

    def _is_chain(self) -> bool:
        return isinstance(self.graph, str) and self.graph == "chain"

    def _decoder(self, num_labels: int) -> Decoder:
        name = self.decoder
        if callable(name):
            return name
        if name == "auto":
            if not self._is_chain():
                return decode
            name = "viterbi"
        return viterbi if name == "viterbi" else routine(name).decode

    def _code_losses(self, X, codes: Tensor) -> Tensor:
        return -self.energy(X).score(codes)


def _suits_sums(X: Features, C: float) -> bool:
    """Return whether, for few labels, L-BFGS on smoothed hinges is likely faster than Frank–Wolfe."""
    rows, columns = cast(Any, X).shape
    are_many = rows >= ROWS_A_COLUMN * columns
    return rows > columns and (not have_like_units(X) or (are_many and are_steep(X, C)))
