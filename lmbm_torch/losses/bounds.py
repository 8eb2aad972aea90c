"""Upper bounds, computed from the hinge loss, on the log loss, the training error and the test error.

Source: lmbm_and_lmsbn_2010, Remark 3, Theorem 4, Remark 6, Lemma 7 and Theorem 8, for belief networks (SBN);
large_margin_boltzmann_machines_2009, Lemma 3.1, Theorem 3.2, Remark 4.2, Lemma 4.3 and Theorem 4.4, for
Boltzmann machines (BM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from lmbm_torch.checks import check_count, check_not_negative, check_positive
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Float


def log_loss_bound(
    hinge: Float[Tensor, " batch"], num_labels: int | Tensor, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """Bound the log loss of a belief network: −log P(y) ≤ 2 Σ_i [γ − m_i]_+ + K log(1 + e^{−2γ}).

    K is the number of labels, m_i the local margin of label i. The source is Remark 3, with the constant
    corrected: log(1 + e^{−2m}) ≤ 2 [γ − m]_+ + log(1 + e^{−2γ}) for each label, tight for m = γ.

    Args:
        hinge: Σ_i [γ − m_i]_+ of each example (:func:`lmbm_torch.losses.local_hinge`).
        num_labels: K, or the number of observed labels of each example if labels are missing.
        margin: γ > 0 of the hinge.

    Raises:
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch.losses import log_loss_bound
        >>> log_loss_bound(torch.zeros(1), num_labels=3)
        tensor([0.3808])
    """
    check_positive("margin", margin)
    return 2 * hinge + num_labels * math.log1p(math.exp(-2 * margin))


def directed_threshold(margin: float = 1.0) -> float:
    """Return γ, the least hinge loss T of an example that a belief network decodes wrongly.

    Remark 6: at the first label in the ordering where truth and prediction differ, both have the same local
    field, and the hinge of either the truth or the prediction is at least γ. The prediction has the least
    loss of all labellings, so the loss of the truth is at least γ, too. Unlike for a Boltzmann machine, T
    does not depend on the weights.

    Args:
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> from lmbm_torch.losses.bounds import directed_threshold
        >>> directed_threshold(margin=0.5)
        0.5
    """
    check_positive("margin", margin)
    return margin


def undirected_log_loss_bound(
    hinge: Float[Tensor, " batch"], energy: PairwiseEnergy | CliqueEnergy, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """Bound the log loss of a Boltzmann machine: −log P(y) ≤ 2 Σ_i [γ − m_i]_+ + K log(1 + e^{−2γ}) + R.

    R = 4 Σ_c ⌊|c|/2⌋ |w_c| (c: cliques) replaces K log 2 + 4 Σ_c |w_c| of Theorem 3.2, which is no bound for
    cliques of four or more labels. Proof: flipping the labels in a set F changes the score by −2 Σ_{i ∈ F}
    m_i + 4 Σ_c ⌊k/2⌋ w_c f_c, with f_c the product of clique c's spins and k = |c ∩ F|; the sum over all F of
    the first term's exponential is Π_i (1 + e^{−2 m_i}). Cliques of a single label add nothing to R.

    Args:
        hinge: Σ_i [γ − m_i]_+ of each example (:func:`lmbm_torch.losses.local_hinge`).
        energy: the model.
        margin: γ > 0 of the hinge.

    Raises:
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses import undirected_log_loss_bound
        >>> energy = PairwiseEnergy(torch.ones(1, 2), torch.tensor([[0.0, 0.1], [0.1, 0.0]]))
        >>> undirected_log_loss_bound(torch.zeros(1), energy)
        tensor([0.6539])
    """
    strength, membership = _couplings(energy)
    penalty = 4 * strength @ (membership.sum(0) // 2)
    return log_loss_bound(hinge, energy.num_labels, margin) + penalty


def undirected_threshold(
    energy: PairwiseEnergy | CliqueEnergy, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """Return T = min_i [γ − Σ_{c ∋ i, |c| ≥ 2} |w_c|]_+; a wrongly decoded example has a loss of at least T.

    This is Remark 4.2 of large_margin_boltzmann_machines_2009 with |w_c(x)| of the example in place of |w_c|
    sup |f_c|, the maximum over all x; both are equal if cliques have no features. Let truth and prediction
    differ at label i, with margins m (truth) and m' (prediction). A clique contributes the same value or
    opposite values to m and m' (a clique of only label i: opposite values). So either m or m' is at most
    Σ |w_c|, and the hinge is at least T. As the prediction's loss is at most the loss of the truth, the bound
    holds for exact hinge decoding. If the couplings of a label exceed the margin, T is 0: no information.

    Args:
        energy: the model.
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses.bounds import undirected_threshold
        >>> undirected_threshold(PairwiseEnergy(torch.ones(1, 2), torch.tensor([[0.0, 0.25], [0.25, 0.0]])))
        tensor([0.7500])
    """
    check_positive("margin", margin)
    strength, membership = _couplings(energy)
    strongest = (strength @ membership.mT).amax(-1)
    return (margin - strongest).clamp_min(0).expand(energy.batch_size)


def least_threshold(energy: MarginEnergy, margin: float = 1.0) -> Float[Tensor, ""]:
    """Return T, a lower bound on the hinge loss of every wrongly decoded example in a batch.

    T is :func:`directed_threshold`, or the least :func:`undirected_threshold` of the batch.

    Args:
        energy: a belief network or a Boltzmann machine.
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        TypeError: no threshold is known for this kind of energy.
        ValueError: the margin is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import DirectedEnergy
        >>> from lmbm_torch.losses.bounds import least_threshold
        >>> least_threshold(DirectedEnergy(torch.zeros(1, 2), torch.zeros(2, 2), torch.arange(2)))
        tensor(1.)
    """
    if isinstance(energy, DirectedEnergy):
        return energy.unary.new_tensor(directed_threshold(margin))
    if isinstance(energy, PairwiseEnergy | CliqueEnergy):
        return undirected_threshold(energy, margin).min()
    raise TypeError(
        "energy: expected DirectedEnergy, PairwiseEnergy or CliqueEnergy, for which a threshold is known, "
        f"got {type(energy).__name__}"
    )


def error_bound(mean_loss: float, threshold: float) -> float:
    """Bound the training error, the share of wrongly decoded examples, by min(1, mean loss / T).

    Theorem 4. The bound holds for exact hinge decoding with the same margin, on the examples over which the
    loss is averaged, and says nothing about other examples. With T = 0 the bound is 1.

    Args:
        mean_loss: mean over examples of Σ_i [γ − m_i]_+.
        threshold: T ≥ 0 (:func:`least_threshold`).

    Raises:
        ValueError: the mean loss or the threshold is negative or not finite.

    Examples:
        >>> from lmbm_torch.losses import error_bound
        >>> error_bound(mean_loss=0.25, threshold=1.0)
        0.25
    """
    check_not_negative("mean_loss", mean_loss)
    check_not_negative("threshold", threshold)
    return 1.0 if mean_loss >= threshold else mean_loss / threshold


class GeneralisationBound(NamedTuple):
    """The upper bound on the error for new examples, with the terms of the bound.

    Args:
        error: the bound on the share of wrongly decoded examples: ``loss`` / T, at most 1.
        loss: the bound on the expected hinge loss: mean loss + ``complexity`` + ``deviation``.
        complexity: the bound on the structured Rademacher complexity, 2 Σ_i W_i B_i / √N.
        deviation: the term that depends on the confidence, (Σ_i γ + W_i B_i) √(log(1/δ) / 2N).

    Examples:
        >>> from lmbm_torch.losses.bounds import GeneralisationBound
        >>> GeneralisationBound(error=0.5, loss=0.5, complexity=0.2, deviation=0.1).complexity
        0.2
    """

    error: float
    loss: float
    complexity: float
    deviation: float


def generalisation_bound(
    mean_loss: float,
    threshold: float,
    *,
    feature_norms: Sequence[float],
    weight_norms: float | Sequence[float],
    num_examples: int,
    margin: float = 1.0,
    confidence: float = 0.95,
) -> GeneralisationBound:
    """Bound loss and error for new examples by Rademacher complexities of the labels' linear functions.

    With probability ``confidence`` = 1 − δ, all weights with ‖w_i‖ ≤ W_i for each label i obey

        E L(w) ≤ mean L(w) + 2 Σ_i W_i B_i / √N + (Σ_i γ + W_i B_i) √(log(1/δ) / 2N),   Pr(ŷ ≠ y) ≤ E L(w) / T

    Lemma 4.3 and Lemma 7 derive the middle term from the sum of the labels' Rademacher complexities, which
    the hinge does not enlarge. Theorems 4.4 and 8 state the same without constants, for the penalty that
    minimises the bound. For a Boltzmann machine, the weight and the features of a clique enter W_i and B_i of
    every label i of the clique: the factor d of Theorem 4.4. W and T must not depend on the examples. On data
    of usual size the bound is above 1 and says nothing.

    Args:
        mean_loss: mean over the training examples of Σ_i [γ − m_i]_+.
        threshold: T ≥ 0 (:func:`least_threshold`).
        feature_norms: (labels,), B_i, the largest norm of the inputs of label i's margin: features, the
            constant 1, parents or cliques.
        weight_norms: W_i, or one W for all labels.
        num_examples: the number N of training examples.
        margin: γ > 0 of the hinge.
        confidence: 1 − δ.

    Raises:
        ValueError: a number is negative or infinite, ``weight_norms`` and ``feature_norms`` differ in length,
            or ``confidence`` is not between 0 and 1.

    Examples:
        >>> from lmbm_torch.losses import generalisation_bound
        >>> settings = {"feature_norms": [1.0, 1.5], "weight_norms": 2.0, "num_examples": 10_000}
        >>> bound = generalisation_bound(0.2, 1.0, **settings)
        >>> round(bound.complexity, 3), round(bound.deviation, 3), round(bound.error, 3)
        (0.1, 0.086, 0.386)
    """
    check_not_negative("mean_loss", mean_loss)
    check_not_negative("threshold", threshold)
    check_positive("margin", margin)
    check_count("num_examples", num_examples)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence}")
    weights = [weight_norms] * len(feature_norms) if isinstance(weight_norms, int | float) else weight_norms
    if len(weights) != len(feature_norms):
        raise ValueError(
            f"weight_norms: expected {len(feature_norms)} norms as for the features, got {len(weights)}"
        )
    for name, norms in (("feature_norms", feature_norms), ("weight_norms", weights)):
        check_not_negative(f"{name}: least", min(norms))
        check_not_negative(f"{name}: largest", max(norms))
    reach = [w * b for w, b in zip(weights, feature_norms, strict=True)]
    complexity = 2 * sum(reach) / math.sqrt(num_examples)
    largest = len(reach) * margin + sum(reach)
    deviation = largest * math.sqrt(math.log(1 / (1 - confidence)) / (2 * num_examples))
    loss = mean_loss + complexity + deviation
    return GeneralisationBound(error_bound(loss, threshold), loss, complexity, deviation)


def _couplings(energy: PairwiseEnergy | CliqueEnergy) -> tuple[Tensor, Tensor]:
    """Return |w_c| for each clique c (0 for a single label), and a mask (labels, cliques) of the members.

    If all examples share the couplings, |w_c| has the shape (1, cliques).
    """
    if isinstance(energy, PairwiseEnergy) and energy.pairwise.ndim == 2:
        energy = energy.select(slice(0, 1))
    cliques = energy if isinstance(energy, CliqueEnergy) else CliqueEnergy.from_pairwise(energy)
    return cliques.weight.abs() * (cliques.membership.sum(0) > 1), cliques.membership
