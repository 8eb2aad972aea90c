"""Sequences of labels with several states; each label depends on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import (
    are_moderate,
    check_log_potentials,
    check_magnitude,
    check_not_mapped,
    check_permutation,
)
from lmbm_torch.energies.base import StateEnergy, check_precision, kept
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.shapes import Bool, Float, Int, Scores, Shaped
from lmbm_torch.verdicts import is_traced, refuse_unless

# Label of positions beyond a chain's end, different from all class indices.
PADDING = -1
HALF = (torch.float16, torch.bfloat16)


def as_lengths(given: Any, like: Tensor) -> Tensor:
    """Convert the lengths of sequences to an int64 tensor on the sequences' device.

    Args:
        given: whole numbers as an array or a list; None for the full length; a tensor is returned unchanged.
        like: the sequences, (batch, length, …).
    """
    if isinstance(given, Tensor):
        return given
    if given is None:
        return torch.full(like.shape[:1], like.shape[1], dtype=torch.int64, device=like.device)
    lengths = torch.as_tensor(given, device=like.device)
    is_whole = not lengths.is_floating_point() and lengths.dtype != torch.bool
    return lengths.long() if is_whole else lengths


def check_lengths(lengths: Int[Tensor, " batch"], most: int) -> None:
    """Raise ValueError for lengths outside 1 to ``most``."""

    def refuse() -> None:
        raise ValueError(f"lengths: expected 1 to {most}, got {int(lengths.min())} to {int(lengths.max())}")

    what = f"lengths: expected 1 to {most}"
    refuse_unless(what, (lengths,), lambda: (lengths == lengths.clamp(1, most)).all(), refuse)


def in_float(energy: Any, *names: str) -> None:
    """Convert the tensors ``names`` of an energy from half precision to float32, in place."""
    for name in names:
        tensor = getattr(energy, name)
        if isinstance(tensor, Tensor) and tensor.dtype in HALF:
            object.__setattr__(energy, name, tensor.float())


@dataclass(frozen=True)
class ChainEnergy(StateEnergy):
    """A batch of chains of different lengths, with class indices 0 … states − 1 as labels.

        score(y) = Σ_{t < length} unary_t(y_t) + Σ_{t < length − 1} transition_t(y_t, y_{t+1})

    and p(y) ∝ exp(score(y)) (max_margin_markov_networks_survey_2003, section 4.2). Log-potentials and labels
    beyond a chain's end are padding; padding is never read and may be NaN. Returned labels are ``PADDING``
    (−1) there. A log-potential of −∞ forbids a state or a transition.

    Args:
        unary: log-potentials of the states at each position, given the input.
        transition: row r, column s: log-potential of state s after state r; one matrix for all steps, or one
            for each example and step.
        lengths: the number of positions of each chain, at least 1, as a tensor, an array or a list of
            integers; by default all positions of ``unary``.

    Log-potentials in half precision, as under autocast, are kept in float32.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device; lengths are out of range.

    Examples:
        >>> import torch
        >>> from lmbm_torch import ChainEnergy, decode
        >>> energy = ChainEnergy(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), torch.eye(2))
        >>> decode(energy).labels
        tensor([[0, 0]])
    """

    PER_EXAMPLE: ClassVar = {"unary": 3, "transition": 4, "lengths": 1}

    unary: Float[Tensor, "batch length states"]
    transition: Float[Tensor, "states states"] | Float[Tensor, "batch steps states states"]
    lengths: Int[Tensor, " batch"] | Any = None

    def __post_init__(self) -> None:
        in_float(self, "unary", "transition")
        self._check_potentials(num_tables=self.unary.shape[1] - 1)
        object.__setattr__(self, "lengths", as_lengths(self.lengths, self.unary))
        self._check_index("lengths", self.lengths, self.batch_size)
        check_lengths(self.lengths, self.unary.shape[1])

    @property
    def max_length(self) -> int:
        """Return the number of positions of each padded chain."""
        return self.num_labels

    @kept
    def inside(self) -> Bool[Tensor, "batch length"]:
        """Return a mask that is true up to each chain's end."""
        return torch.arange(self.max_length, device=self.device) < self.lengths[:, None]

    def without_padding(self) -> tuple[Tensor, Tensor]:
        """Return unary and transition with 0 in the padding."""
        unary, steps = self.unary.masked_fill(~self.inside[..., None], 0), self.transition
        return unary, steps if self.is_shared else steps.masked_fill(~self.inside[:, 1:, None, None], 0)

    def check_values(self) -> None:
        """Raise ValueError as :meth:`BaseEnergy.check_values` does, but allow −∞ and any padding."""
        check_precision(self.dtype)
        check_not_mapped("unary", self.unary)
        check_not_mapped("transition", self.transition)
        unary, transition = self.unary, self.transition
        is_on_host = self.device.type == "cpu" and not is_traced()
        if is_on_host and are_moderate(unary) and (not transition.numel() or are_moderate(transition)):
            return
        # Check the values without padding, which may contain NaN or infinity.
        for name, values in zip(("unary", "transition"), self.without_padding(), strict=True):
            check_log_potentials(name, values)
            check_magnitude(name, values)

    def score(self, labels: Shaped[Tensor, "*samples #batch length"]) -> Scores:
        """Return the score Σ_t unary_t(y_t) + Σ_t transition_t(y_t, y_{t+1}), −∞ if a labelling is forbidden.

        Raises:
            ValueError: a label inside a chain is no state.
        """
        strange = self.inside & ((labels < 0) | (labels >= self.num_states))
        self._check_states(strange, " up to each chain's end")
        # Clamp the indices: a GPU kernel must not get an index out of range, even if it is refused later.
        states = labels.long().where(self.inside, 0).clamp(0, self.num_states - 1)
        unary = self._unary_scores(states)
        before, after = states[..., :-1], states[..., 1:]
        if self.is_shared:
            steps = self.transition[before, after]
        else:
            tables = self.transition.flatten(-2).expand(*before.shape, -1)
            steps = tables.gather(-1, (before * self.num_states + after)[..., None]).squeeze(-1)
        # Drop the padding by ``where``: a product with the mask would keep NaN.
        return unary.where(self.inside, 0).sum(-1) + steps.where(self.inside[:, 1:], 0).sum(-1)

    def locally_normalised(self) -> ChainEnergy:
        """Return the maximum-entropy Markov model with these log-potentials; the new score is log P(y).

            log P(y) = log P(y_0) + Σ_t log P(y_{t+1} | y_t)

        where each factor is a softmax over the states of one position, of unary plus transition (McCallum,
        Freitag and Pereira, ICML 2000). Observations at later positions do not change the probabilities of
        earlier labels: this is the label bias, which globally normalised chains do not have.

        Raises:
            ValueError: a state has no allowed successor, or no state is allowed at the first position.
        """
        # Replace the padding by 0: a softmax of NaN would have NaN gradients.
        unary, transition = self.without_padding()
        first = unary[:, :1].log_softmax(-1)
        steps = (transition + unary[:, 1:, None]).log_softmax(-1)

        def has_no_nan() -> Tensor:
            total = first.sum() + steps.sum()
            return total == total

        def refuse() -> None:
            raise ValueError("energy: expected an allowed successor of every state, got a state without one")

        # If all potentials are −∞, the softmax is NaN: then refuse the energy.
        what = "energy: expected an allowed successor of every state"
        refuse_unless(what, (unary, transition), has_no_nan, refuse)
        return ChainEnergy(torch.cat([first, torch.zeros_like(unary[:, 1:])], 1), steps, self.lengths)

    @classmethod
    def from_pairwise(cls, energy: PairwiseEnergy, path: Sequence[int] | Tensor) -> ChainEnergy:
        """Convert a Boltzmann machine coupled along a path to a chain of states 0 and 1 with equal scores.

        Args:
            energy: an energy that couples only neighbours on the path.
            path: ``path[t]`` is the label at position t, so the chain's labels are ``labels[..., path]``.

        Raises:
            ValueError: ``path`` is no permutation of the labels, or other labels than neighbours are coupled.
        """
        labels = energy.num_labels
        check_permutation("path", path, labels)
        order = torch.as_tensor(path, device=energy.device)
        pairwise = energy.pairwise[..., order, :][..., order]
        place = torch.arange(labels, device=energy.device)
        neighbours = (place[:, None] - place).abs() <= 1
        if bool((pairwise.masked_fill(neighbours, 0) != 0).any()):
            raise ValueError(
                "path: expected couplings only between neighbours on the path, got other couplings"
            )
        spins = energy.unary.new_tensor([-1, 1])
        unary = energy.unary[:, order, None] * spins
        # Add the constant to all states of the first position, so that scores stay equal.
        unary = torch.cat([unary[:, :1] + energy.constant[:, None, None], unary[:, 1:]], 1)
        steps = pairwise.diagonal(1, -2, -1)[..., None, None] * (spins[:, None] * spins)
        return cls(unary, steps.expand(energy.batch_size, -1, -1, -1))
