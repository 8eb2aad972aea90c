"""Base classes of sequence classifiers: lists of arrays, joined for the solvers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from lmbm_torch.checks import check_shape, level_of_caller
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chains.tag_sets import (
    Tags,
    are_partial,
    known_classes,
    label_rows,
    labelling_within,
    steps_of,
)
from lmbm_torch.estimators.chains.token_features import TokenFeatures, are_tokens
from lmbm_torch.estimators.common.base import ACCEPTED, TrainedEstimator
from lmbm_torch.estimators.common.calls import answer_call
from lmbm_torch.estimators.common.settings import check_parameters
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.memory import part_bytes
from lmbm_torch.protocol import Capabilities
from lmbm_torch.solvers.chains import elastic_net
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.chains.problems import padded_chains
from lmbm_torch.solvers.networks.problems import Features, canonical
from lmbm_torch.solvers.structural import lbfgs
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Memory, in bytes, for tables of class pairs of neighbouring positions; limits the sequences decoded at once.
_PAIR_BYTES = 2**28


class Rows(NamedTuple):
    """The positions of all sequences, joined to a single array.

    Args:
        features: (positions, features), dense or CSR.
        start: (sequences + 1,), the first position of each sequence, and the number of positions.
        allowed: (positions, classes), True for each allowed class of a position; None if all are allowed.
    """

    features: Features
    start: np.ndarray
    allowed: np.ndarray | None = None

    def of(self, sequences: np.ndarray) -> Rows:
        """Return the positions of the sequences with the given indices."""
        lengths = np.diff(self.start)[sequences]
        start = np.concatenate([[0], lengths.cumsum()])
        chosen = np.arange(start[-1]) + np.repeat(self.start[sequences] - start[:-1], lengths)
        return Rows(self.features[chosen], start, None if self.allowed is None else self.allowed[chosen])


class SequenceClassifier(TrainedEstimator, ABC):
    """A classifier of sequences, which predicts the classes of all positions jointly.

    ``X`` is a list of arrays ``(length, features)``, all dense or all sparse, an array ``(sequences, length,
    features)``, a list of data frames with the same columns, or a list of lists of tokens: dictionaries,
    texts or lists of texts, as sklearn-crfsuite takes tokens
    (:mod:`~lmbm_torch.estimators.chains.token_features`). ``y`` is a list of arrays ``(length,)`` of classes.
    Subclasses compute the energy in :meth:`_energy`.

    Attributes:
        classes_: the classes; n_features_in_: the number of features of a position.
        feature_names_in_: names of the columns of data frames, or of token features; absent for arrays.
    """

    encodes_frames: ClassVar[bool] = False

    # Token features that occur in fewer tokens are left out.
    min_freq = 1
    token_features_: TokenFeatures | None

    # Allowed pairs of neighbouring classes; a parameter of only some subclasses.
    constraints: Any = None
    # Rules over labels are not supported for sequences.
    rules = None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Skip scikit-learn's estimator checks, which cannot create lists of arrays as instances.
        tags.no_validation = True
        tags.target_tags.required = True
        return tags

    @property
    def capabilities(self) -> Capabilities:
        """Return what the classifier can do, see :class:`~lmbm_torch.protocol.Capabilities`."""
        return Capabilities(objective="score", minimises=False, decoder=chain_dp.decode, of_sequences=True)

    def energies(self, X) -> list[ChainEnergy]:
        """Return a list with a single energy, for all sequences ``X``."""
        return [self.energy(X)]

    def calibrated(self, energies: Sequence[ChainEnergy]) -> list[ChainEnergy]:
        """Return the energies unchanged: the distribution needs no calibration."""
        return list(energies)

    def energy(self, X, *, known=None) -> ChainEnergy:
        """Return the energy of the chains for sequences ``X``, in float64, on ``device``.

        Args:
            known: known classes, see :meth:`predict`.
        """
        return self._known_energy(self._validate_predict(X, known))

    @answer_call
    def decode(self, X, *, top_k: int = 1, known=None) -> Decoding:
        """Return the ``top_k`` label sequences with the largest scores, as padded indices into ``classes_``.

        Args:
            known: known classes, see :meth:`predict`.
        """
        return chain_dp.decode(self.energy(X, known=known), top_k=top_k)

    @answer_call
    def predict(self, X, *, known=None) -> list[Any]:
        """Predict the class of each position, for each sequence.

        The result for a sequence of tokens is a list of classes, as in sklearn-crfsuite, otherwise an array.

        Args:
            known: for each sequence a list with an entry for each position: a class, a set of classes, or
                None or NaN for any class. The prediction completes the known classes.

        Raises:
            ValueError: an input is invalid (the message names it), or constraints forbid the known classes.
        """
        labels = self._each(X, known, lambda energy: chain_dp.decode(energy).labels)
        found = [self.classes_[row] for row in labels]
        return [row.tolist() for row in found] if are_tokens(X) else found

    def score(self, X, y) -> float:
        """Return the share of positions whose class is predicted right."""
        predicted = self.predict(X)
        truth = label_rows(y, [len(each) for each in predicted])
        return float(np.mean(np.concatenate(predicted) == truth))

    def _each(self, X, known: Any, found: Callable[[ChainEnergy], Tensor]) -> list[np.ndarray]:
        """Compute values of each sequence's positions by ``found``, in groups of sequences of similar length.

        Groups save time and memory, because sequences are padded only to the longest of the group.
        """
        rows = self._validate_predict(X, known)
        lengths, of_each = np.diff(rows.start), {}
        for group in _of_similar_length(lengths, len(self.classes_)):
            values = found(self._known_energy(rows.of(group))).cpu().numpy()
            of_each |= {place: row[: lengths[place]] for place, row in zip(group, values, strict=True)}
        return [of_each[place] for place in range(len(lengths))]

    @abstractmethod
    def _energy(self, rows: Rows) -> ChainEnergy:
        """Return the energy of validated rows, in which known classes are ignored."""

    def _known_energy(self, rows: Rows) -> ChainEnergy:
        """Return the energy of validated rows, with −∞ for classes that are not allowed."""
        energy = self._energy(rows)
        if rows.allowed is None:
            return energy
        unary = energy.unary.clone()
        allowed = torch.from_numpy(rows.allowed).to(unary.device)
        unary[energy.inside] = unary[energy.inside].masked_fill(~allowed, -torch.inf)
        return replace(energy, unary=unary)

    def _chains(self, scores: np.ndarray, transition: np.ndarray, rows: Rows) -> ChainEnergy:
        """Build the energy from scores (positions, classes) and transitions (classes, classes)."""
        steps = steps_of(self.classes_, self.constraints)
        return padded_chains(scores, transition, np.diff(rows.start), steps).to(self._device)

    def _validate_fit(self, X, y) -> tuple[Rows, np.ndarray]:
        """Validate the data; return the rows and the class index of each position; set ``classes_``."""
        rows = self._fit_rows(X)
        labels = label_rows(y, np.diff(rows.start).tolist())
        if are_partial(labels):
            raise ValueError("y: expected a class at every position, which only a ChainCRF does without")
        self.classes_, codes, _ = Tags.of(labels)
        assert codes is not None  # of tags known in full
        return rows, codes

    def _fit_rows(self, X) -> Rows:
        """Validate training sequences and join their positions; set names and number of features."""
        check_parameters(self)
        features = self.token_features_ = TokenFeatures.of(X, self.min_freq) if are_tokens(X) else None
        names = _column_names(X) if features is None else np.array(features.names, dtype=object)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        rows = _stacked(self._in_order(X)) if features is None else Rows(*features.rows(X)[:2])
        self.n_features_in_ = rows.features.shape[1]  # pyright: ignore[reportOptionalSubscript]
        return rows

    def _validate_predict(self, X, known: Any = None) -> Rows:
        check_is_fitted(self)
        if are_tokens(X):
            if self.token_features_ is None:
                raise ValueError("X: expected arrays (length, features) as in fit, got lists of tokens")
            features, start, unknown = self.token_features_.rows(X)
            if unknown:
                left_out = f"X: {unknown} features of tokens were unknown in fit and are left out"
                warnings.warn(left_out, stacklevel=level_of_caller())
            rows = Rows(features, start)
        elif self.token_features_ is not None:
            raise ValueError("X: expected lists of tokens as in fit, got arrays")
        else:
            rows = _stacked(self._in_order(X))
        check_shape("X: each sequence", rows.features, None, self.n_features_in_)
        if known is None:
            return rows
        lengths = np.diff(rows.start)
        allowed = known_classes(known, lengths, self.classes_)
        labelling_within(allowed, lengths, steps_of(self.classes_, self.constraints), "known")
        return rows._replace(allowed=allowed)

    def _in_order(self, X: Sequence) -> Sequence:
        """Put the columns of data frames into the order of ``fit``.

        Raises:
            ValueError: the columns are not the columns of ``fit``.
        """
        names, found = getattr(self, "feature_names_in_", None), _column_names(X)
        if names is None or found is None:
            return X
        if sorted(found) != sorted(names):
            raise ValueError(f"X: expected the columns {list(names)}, got {list(found)}")
        return [each[list(names)] for each in X]


class ProbabilisticSequenceClassifier(SequenceClassifier):
    """A sequence classifier with a distribution of the classes given the sequence."""

    # Norm of the gradient after training by likelihood, relative to the norm at zero weights.
    relative_gradient_: float

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, has_probabilities=True)

    @answer_call
    def predict_proba(self, X, *, known=None) -> list[np.ndarray]:
        """Return P(class | sequence, known classes) of each position, (length, classes) for each sequence.

        Args:
            known: see :meth:`predict`.
        """
        return self._each(X, known, lambda energy: chain_dp.marginals(energy).states)

    def predict_marginals(self, X) -> list[list[dict[Any, float]]]:
        """Return P(class | sequence) by class for each position, in the form of sklearn-crfsuite."""
        found, tags = self.predict_proba(X), self.classes_.tolist()
        return [[dict(zip(tags, row, strict=True)) for row in each.tolist()] for each in found]


def by_position(weights: np.ndarray | None, start: np.ndarray) -> np.ndarray | None:
    """Repeat each sequence's weight for all its positions, (positions,); keep None."""
    return None if weights is None else np.repeat(weights, np.diff(start))


def _of_similar_length(lengths: np.ndarray, num_classes: int) -> Iterator[np.ndarray]:
    """Yield indices of sequences to decode together: of similar length, and as many as memory allows.

    The longest sequence of a group is at most twice as long as the shortest.
    """
    doublings = np.ceil(np.log2(lengths))
    for each in np.unique(doublings):
        group = np.flatnonzero(doublings == each)
        pair_bytes = 8 * num_classes**2 * int(lengths[group].max())
        most = max(part_bytes(_PAIR_BYTES) // pair_bytes, 1)
        yield from np.split(group, range(most, len(group), most))


def _column_names(X: Any) -> np.ndarray | None:
    """Return the column names if sequences are data frames; None if sequences are arrays.

    Raises:
        ValueError: data frames have different columns, or there are data frames and arrays.
    """
    if isinstance(X, np.ndarray) or sparse.issparse(X) or not isinstance(X, Sequence):
        return None
    columns = [getattr(each, "columns", None) for each in X]
    if not any(each is not None and all(isinstance(name, str) for name in each) for each in columns):
        return None
    names = [None if each is None else [*each] for each in columns]
    for number, each in enumerate(names):
        if each is None or sorted(each) != sorted(names[0] or []):
            raise ValueError(
                f"X: expected data frames with the columns {names[0]}, got {each} in sequence {number}"
            )
    return np.array(names[0], dtype=object)


def _stacked(X: Any) -> Rows:
    """Join the sequences' feature arrays; raise ValueError if their numbers of features differ."""
    if isinstance(X, np.ndarray) and X.ndim == 3:
        X = [*X]
    if isinstance(X, np.ndarray) or sparse.issparse(X):
        got = f"{type(X).__name__} of shape {X.shape}"
        raise ValueError(f"X: expected a list of arrays (length, features), got {got}")
    if not len(X):
        raise ValueError("X: expected at least one sequence, got none")
    empty = [number for number, each in enumerate(X) if getattr(each, "shape", None) and not each.shape[0]]
    if empty:
        raise ValueError(f"X: expected at least one position in every sequence, got none in {empty}")
    # Check plain arrays together after joining, because to check each array takes 0.1 ms: 90 % of the time of
    # a prediction for short sequences.
    are_plain = all((type(each) is np.ndarray or sparse.issparse(each)) and each.ndim == 2 for each in X)
    arrays = X if are_plain else [check_array(each, input_name="X", **ACCEPTED) for each in X]
    widths = sorted({each.shape[1] for each in arrays})
    if len(widths) > 1:
        raise ValueError(f"X: expected as many features in every sequence, got {widths}")
    are_sparse = [sparse.issparse(each) for each in arrays]
    if any(are_sparse) and not all(are_sparse):
        raise ValueError("X: expected all sequences dense or all sparse, got both")
    start = np.concatenate([[0], [each.shape[0] for each in arrays]]).cumsum()
    joined = sparse.vstack(arrays, "csr") if all(are_sparse) else np.concatenate(arrays)
    stacked: Any = check_array(joined, input_name="X", **ACCEPTED)
    return Rows(canonical(stacked) if all(are_sparse) else stacked, start)


def train_likelihood(
    classifier: ProbabilisticSequenceClassifier, problem: LikelihoodProblem, absolute: float = 0.0
) -> StructuralWeights:
    """Minimise the objective plus absolute · ‖w‖₁ by L-BFGS; return weights of features and transitions.

    The classifier's attributes for objective, gap and iterations are set.
    """
    state: Any
    if absolute > 0:
        state = elastic_net.solve(problem, absolute, tol=classifier.tol, max_iter=classifier.max_iter)
    else:
        state = classifier._run(lbfgs, problem)
    classifier.objective_, classifier.n_iter_ = state.objective, state.num_iters
    classifier.duality_gap_, classifier.relative_gradient_ = state.relative_excess, state.relative_gradient
    classifier._warn_unless_reached(state.gap, "relative gradient or gain")
    return state.weights
