"""Structural SVMs for label vectors: pairwise Boltzmann machines, margin-rescaled by the Hamming loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmbm_torch.checks import check_known, check_labels, check_shape
from lmbm_torch.energies import ChainEnergy, PairwiseEnergy, to_spins
from lmbm_torch.inference import chain_dp
from lmbm_torch.inference.results import Decoding
from lmbm_torch.losses import loss_augment
from lmbm_torch.solvers.label_problems import Features
from lmbm_torch.solvers.structural_problems import CuttingPlanes, Maximisers, StructuralProblem

Decoder = Callable[[PairwiseEnergy], Decoding]
"""The labellings of largest score: ``decode`` of exact, integer_program or lp_relaxation, or viterbi."""


def label_vector_problem(
    features: Features,
    labels: np.ndarray,
    decoder: Decoder,
    *,
    pairs: Sequence[tuple[int, int]],
    C: float = 1.0,
    sample_weight: np.ndarray | None = None,
    coupling_penalty: float = 1.0,
) -> StructuralProblem:
    """score(x, y) = Σ_i s_i (⟨w_i, x⟩ + b_i) + Σ_{(i, j)} v_ij s_i s_j with spins s = 2y − 1, Δ Hamming's.

    With a decoder that relaxes (:mod:`~lmbm_torch.inference.lp_relaxation`) a labelling may be fractional.
    What is solved is then the outer relaxation of the SVM, an upper bound on its objective (Finley and
    Joachims 2008), and the duality gap refers to that.

    Args:
        features: (instances, features), float32 or float64, dense or CSR.
        labels: (instances, labels) in {0, 1}.
        decoder: energy → the labellings of largest score and a bound on it.
        pairs: the labels that are coupled.
        C: the losses' weight in ½‖w‖² + C Σ hinge; intercepts are regularised like other weights.
        sample_weight: (instances,), multiplies C.
        coupling_penalty: η, multiplies the couplings' squares.

    Raises:
        ValueError: shapes that do not fit, labels other than 0 and 1, pairs that are not two labels each or
            occur twice; and as :meth:`StructuralProblem.from_rows`.
        TypeError: labels that are no numbers; features that are neither float32 nor float64.
    """
    labels = np.asarray(labels)
    check_shape("labels", labels, features.shape[0], None)  # pyright: ignore[reportOptionalSubscript]
    check_labels("labels", labels)
    count = labels.shape[1]
    sets = {frozenset(pair) for pair in pairs}
    if len(sets) < len(pairs) or not all(len(pair) == 2 and pair <= set(range(count)) for pair in sets):
        raise ValueError(f"pairs: expected different pairs of labels below {count}, got {list(pairs)}")
    joined = np.array(pairs, np.int64).reshape(-1, 2)
    return StructuralProblem.from_rows(
        features,
        LabelVectorOracle(labels.astype(np.int64), joined[:, 0], joined[:, 1], decoder),
        num_outputs=count,
        num_couplings=len(joined),
        C=C,
        sample_weight=sample_weight,
        coupling_penalty=coupling_penalty,
    )


def viterbi(energy: PairwiseEnergy, *, known: torch.Tensor | None = None) -> Decoding:
    """The labelling of largest score where label i is coupled with i + 1 alone, by dynamic programming.

    Args:
        known: (batch, labels) of {0, 1, NaN}, NaN for a free label; only labellings that agree compete.

    Raises:
        ValueError: other couplings; ``known`` of another shape or with other values.
    """
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    chain = ChainEnergy.from_pairwise(energy, range(energy.num_labels))
    if known is not None:
        forbidden = known[..., None] == known.new_tensor([1, 0])
        chain = chain.add_unary(torch.zeros_like(chain.unary).masked_fill(forbidden, -torch.inf))
    return chain_dp.decode(chain)


@dataclass(frozen=True)
class LabelVectorOracle:
    """Loss-augmented decoding of label vectors.

    Args:
        labels: (examples, labels), the true ones.
        first: (couplings,), the one label of each pair.
        second: (couplings,), the other one.
        decoder: energy → the labellings of largest score.
    """

    labels: np.ndarray
    first: np.ndarray
    second: np.ndarray
    decoder: Decoder

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        """The maximisers of Δ + score, all in one call of the decoder."""
        labels = torch.from_numpy(self.labels[examples])
        augmented = loss_augment(self._energy(scores, couplings), labels)
        found = self.decoder(augmented)
        bound = found.bound - augmented.score(labels)
        if found.relaxed is None:
            planes = self.planes(examples, found.labels.numpy())
        else:
            planes = self._relaxed_planes(examples, found.relaxed.numpy(), couplings)
        return Maximisers(planes, bound.numpy())

    def planes(self, examples: np.ndarray, labels: np.ndarray) -> CuttingPlanes:
        """One plane for each example of ``examples`` (planes,), from its labelling (planes, labels)."""
        truth, spins = to_spins(self.labels[examples], np.int64), to_spins(labels, np.int64)
        unary = truth - spins
        loss = np.abs(unary).sum(1) / 2
        return CuttingPlanes.from_dense(examples, loss, unary, self._products(truth) - self._products(spins))

    def _relaxed_planes(
        self, examples: np.ndarray, relaxed: np.ndarray, couplings: np.ndarray
    ) -> CuttingPlanes:
        """Planes from P(y_i = 1) and, of the pairs' marginals that agree with it, the best."""
        first, second = relaxed[:, self.first], relaxed[:, self.second]
        both = np.where(couplings > 0, np.minimum(first, second), np.maximum(first + second - 1, 0))
        products = 4 * both - 2 * first - 2 * second + 1
        truth = to_spins(self.labels[examples], np.float64)
        unary = truth - (2 * relaxed - 1)
        return CuttingPlanes.from_dense(
            examples, np.abs(unary).sum(1) / 2, unary, self._products(truth) - products
        )

    def _products(self, spins: np.ndarray) -> np.ndarray:
        return spins[:, self.first] * spins[:, self.second]

    def _energy(self, scores: np.ndarray, couplings: np.ndarray) -> PairwiseEnergy:
        pairwise = np.zeros((scores.shape[1], scores.shape[1]))
        pairwise[self.first, self.second] = couplings
        return PairwiseEnergy(torch.from_numpy(scores), torch.from_numpy(pairwise + pairwise.T))
