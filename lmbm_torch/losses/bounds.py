"""Bounds that a small hinge loss proves: on the log loss and on the share of wrong predictions.

Source: lmbm_and_lmsbn_2010, Remark 3, Theorem 4 and Remark 6, for directed models;
large_margin_boltzmann_machines_2009, Lemma 3.1, Theorem 3.2 and Remark 4.2, for undirected ones.
"""

from __future__ import annotations

import math

from torch import Tensor

from lmbm_torch.checks import check_not_negative, check_positive
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Float


def log_loss_bound(
    hinge: Float[Tensor, " batch"], num_labels: int | Tensor, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """−log P(y) ≤ 2 Σ_i [γ − m_i]_+ + K log(1 + e^{−2γ}) for a directed model.

    Remark 3, with the constant corrected. It follows label by label from
    log(1 + e^{−2m}) ≤ 2 [γ − m]_+ + log(1 + e^{−2γ}). Tight where every m_i = γ.

    Args:
        hinge: Σ_i [γ − m_i]_+ of each example (:func:`lmbm_torch.losses.hinge.local_hinge`).
        num_labels: K, or where labels are missing the number observed in each example.
        margin: γ > 0 of the hinge.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    return 2 * hinge + num_labels * math.log1p(math.exp(-2 * margin))


def directed_threshold(margin: float = 1.0) -> float:
    """T, the least hinge loss of a training example that a directed model decodes wrongly: γ.

    Remark 6: at the first label in the ordering where truth and prediction differ, both have the same local
    field, so the hinge of one of them is at least γ. The prediction has the least loss of all labellings, so
    the loss of the truth is at least γ too. The weights play no part, unlike in an undirected model.

    Args:
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    return margin


def undirected_log_loss_bound(
    hinge: Float[Tensor, " batch"], energy: PairwiseEnergy | CliqueEnergy, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """−log P(y) ≤ 2 Σ_i [γ − m_i]_+ + K log(1 + e^{−2γ}) + R(w) for a Boltzmann machine.

    R(w) = 4 Σ_c ⌊|c|/2⌋ |w_c|, in place of Theorem 3.2's K log 2 + 4 Σ_c |w_c|, which is none for cliques of
    four or more labels. Flipping the labels in F changes the score by −2 Σ_{i ∈ F} m_i + 4 Σ_c ⌊k/2⌋ w_c f_c,
    with f_c the parity of clique c and k = |c ∩ F|; the sum over all F of what the first term allows is
    Π_i (1 + e^{−2 m_i}). A clique of a single label couples nothing and adds nothing.

    Args:
        hinge: Σ_i [γ − m_i]_+ of each example (:func:`lmbm_torch.losses.hinge.local_hinge`).
        energy: the model.
        margin: γ > 0 of the hinge.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    strength, membership = _couplings(energy)
    penalty = 4 * strength @ (membership.sum(0) // 2)
    return log_loss_bound(hinge, energy.num_labels, margin) + penalty


def undirected_threshold(
    energy: PairwiseEnergy | CliqueEnergy, margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """T = min_i [γ − Σ_{c ∋ i, |c| ≥ 2} |w_c|]_+ of each example: its least loss if it is decoded wrongly.

    Remark 4.2, with |w_c(x)| for the paper's |w_c| sup |f_c|, its maximum over all x; the two are equal where
    a clique holds only labels. At a label where truth and prediction differ, a clique adds the same value to
    both margins or opposite values, and a clique of that label alone opposite values, so the hinge of one of
    them is at least T there. The total loss of the prediction is no more than the truth's, so this holds for
    exact hinge decoding. T is 0, and vacuous, as soon as a label's couplings exceed the margin.

    Args:
        energy: the model.
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        ValueError: a margin that is not a finite number above 0.
    """
    check_positive("margin", margin)
    strength, membership = _couplings(energy)
    strongest = (strength @ membership.mT).amax(-1)
    return (margin - strongest).clamp_min(0).expand(energy.batch_size)


def least_threshold(energy: MarginEnergy, margin: float = 1.0) -> Float[Tensor, ""]:
    """T of a batch: :func:`directed_threshold`, or the examples' least :func:`undirected_threshold`.

    Args:
        energy: a directed model or a Boltzmann machine.
        margin: γ > 0 of the hinge, in training and in decoding.

    Raises:
        TypeError: an energy of another kind, for which no threshold is known.
        ValueError: a margin that is not a finite number above 0.
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
    """min(1, mean loss / T), an upper bound on the share of examples that are decoded wrongly.

    Theorem 4. It holds for exact hinge decoding with the same margin, on the examples over which the mean was
    taken, and says nothing about others. With T = 0 it is vacuous, 1.

    Args:
        mean_loss: mean over examples of Σ_i [γ − m_i]_+.
        threshold: T ≥ 0 (:func:`least_threshold`).

    Raises:
        ValueError: a mean loss or threshold that is negative or not finite.
    """
    check_not_negative("mean_loss", mean_loss)
    check_not_negative("threshold", threshold)
    return 1.0 if mean_loss >= threshold else mean_loss / threshold


def _couplings(energy: PairwiseEnergy | CliqueEnergy) -> tuple[Tensor, Tensor]:
    """|w_c|, 0 for cliques of a single label; and which labels are in which cliques, (labels, cliques)."""
    cliques = energy if isinstance(energy, CliqueEnergy) else CliqueEnergy.from_pairwise(energy)
    return cliques.weight.abs() * (cliques.membership.sum(0) > 1), cliques.membership
