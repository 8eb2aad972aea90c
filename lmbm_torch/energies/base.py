"""The protocol and the base classes of energies, and the conversion of labels to spins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Protocol, overload, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_known, check_like, check_moderate, check_shape
from lmbm_torch.shapes import Float, Known, Labels, LabelScores, Scores, Shaped
from lmbm_torch.torch_internals import register_leaves
from lmbm_torch.verdicts import is_traced, refuse_unless


@runtime_checkable
class Energy(Protocol):
    """A batch of scoring functions over labels; :class:`BaseEnergy` implements all but ``score``.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import Energy, PairwiseEnergy
        >>> isinstance(PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2)), Energy)
        True
    """

    @property
    def batch_size(self) -> int: ...

    @property
    def num_labels(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def score(self, labels: Labels, /) -> Scores:
        """Return the log-potential of each labelling; larger is better, and p(y) ∝ exp(score(y))."""
        ...

    def energy(self, labels: Labels, /) -> Scores:
        """Return the negative score of each labelling."""
        ...

    def check_values(self) -> None:
        """Raise ValueError if inference cannot use the log-potentials; inference routines call this first."""

    def select(self, rows: Tensor | slice) -> Energy:
        """Return the energy of the examples ``rows`` of the batch."""
        ...

    def add_unary(self, unary: Tensor) -> Energy:
        """Return the energy with ``unary`` added to the score of each label, for instance a loss."""
        ...


@runtime_checkable
class MarginEnergy(Energy, Protocol):
    """The protocol of energies with a local margin for each label, as hinge losses need.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import ChainEnergy
        >>> from lmbm_torch.energies.base import MarginEnergy
        >>> isinstance(ChainEnergy(torch.zeros(1, 3, 2), torch.zeros(2, 2)), MarginEnergy)
        False
    """

    def local_margins(self, labels: Labels) -> LabelScores:
        """Return the local margins m_i = s_i z_i, the agreement of label i with the local field."""
        ...


class kept:  # in place of functools.cached_property
    """A property computed once, without the lock of cached_property, which torch.compile cannot trace."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        name = f"_{self.compute.__name__}"
        if name not in owner.__dict__:
            object.__setattr__(owner, name, self.compute(owner))
        return owner.__dict__[name]


class BaseEnergy:
    """The base class of energies; each kind is a frozen dataclass with other tensors and another ``score``.

    Attributes:
        PER_EXAMPLE: names of the tensors that may have a row for each example, and the number of axes with
            rows. The first tensor always has rows, and determines the energy's dtype and device. Optional
            tensors may be None.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> energy = PairwiseEnergy(torch.zeros(3, 2), torch.zeros(2, 2))
        >>> energy.batch_size, energy.num_labels, energy.select(slice(1, 3)).batch_size
        (3, 2, 2)
    """

    PER_EXAMPLE: ClassVar[dict[str, int]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Register the class, so that torch.func (such as jvp of a model) finds the tensors of energies.
        register_leaves(cls, _flat, partial(_unflat, cls))

    @property
    def batch_size(self) -> int:
        return self._first.shape[0]

    @property
    def num_labels(self) -> int:
        return self._first.shape[1]

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def dtype(self) -> torch.dtype:
        return self._first.dtype

    @property
    def _first(self) -> Tensor:
        return getattr(self, next(iter(self.PER_EXAMPLE)))

    def _check_first(self) -> None:
        """Raise ValueError unless the first tensor is floating-point, not empty and has the right axes."""
        name, axes = next(iter(self.PER_EXAMPLE.items()))
        check_shape(name, self._first, *[None] * axes)
        check_floating(name, self._first)

    def _resolve_negative(self: Any) -> None:
        """Copy tensors that torch stores with a negative bit, which NumPy cannot read."""
        # Do nothing in compiled code, which does not pass tensors to NumPy.
        if is_traced():
            return
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, Tensor) and tensor.is_neg():
                object.__setattr__(self, field.name, tensor.resolve_neg())

    def _check_table(self, name: str, *shape: int) -> None:
        """Raise ValueError if a tensor, shared or per example, has a wrong shape, dtype or device."""
        table = getattr(self, name)
        check_shape(name, table, *(() if table.ndim == len(shape) else (self.batch_size,)), *shape)
        check_like(name, table, next(iter(self.PER_EXAMPLE)), self._first)

    def energy(self: Any, *labels: Tensor) -> Tensor:
        """Return the negative score of each labelling."""
        return -self.score(*labels)

    def check_values(self) -> None:
        """Raise ValueError for NaN, infinite, extremely large or half-precision log-potentials."""
        check_precision(self.dtype)
        for name in self.PER_EXAMPLE:
            if getattr(self, name) is not None:
                check_moderate(name, getattr(self, name))

    def select(self: Any, rows: Tensor | slice) -> Any:
        """Return the energy of the examples ``rows`` of the batch."""
        tensors = {name: getattr(self, name) for name in self.PER_EXAMPLE}
        chosen = {
            name: tensor[rows]
            for name, tensor in tensors.items()
            if tensor is not None and tensor.ndim == self.PER_EXAMPLE[name]
        }
        return replace(self, **chosen)

    def to(self: Any, *where: torch.dtype | torch.device | str) -> Any:
        """Convert the energy to another precision, device or both; integer tensors keep their dtype."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        for each in where:
            for name, tensor in tensors.items():
                if tensor.is_floating_point() or not isinstance(each, torch.dtype):
                    tensors[name] = tensor.to(each)
        return replace(self, **tensors)

    def add_unary(self: Any, unary: Tensor) -> Any:
        """Return the energy with ``unary`` added to the score of each label, for instance a loss.

        Args:
            unary: the score grows by Σ_i unary_i y_i, or for labels with several states by Σ_t unary_t(y_t);
                a single row is used for all examples.

        Raises:
            ValueError: ``unary`` has another shape, dtype or device than the energy.
            TypeError: the energy takes no unary terms; a belief network, for instance, has a normalised
                score.
        """
        raise TypeError(
            "energy: expected a kind that takes further unary terms, such as PairwiseEnergy, got "
            f"{type(self).__name__}"
        )

    def _check_unary(self, unary: Tensor, like: Tensor) -> None:
        check_shape("unary", unary, 1 if len(unary) == 1 else self.batch_size, *like.shape[1:])
        check_like("unary", unary, "the energy", like)


def _flat(energy: Any) -> tuple[list[Any], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """Split an energy into the list of tensors, and the tensors' names with all other fields."""
    values = {field.name: getattr(energy, field.name) for field in fields(energy)}
    names = tuple(
        field.name
        for field in fields(energy)
        if "Tensor" in str(field.type) and values[field.name] is not None
    )
    return [values.pop(name) for name in names], (names, tuple(values.items()))


def _unflat(kind: type, leaves: Iterable[Any], rest: Any) -> Any:
    """Build an energy from the parts of :func:`_flat`, without checks: torch may pass any objects."""
    names, fixed = rest
    energy = object.__new__(kind)
    for name, value in (*zip(names, leaves, strict=True), *fixed):
        object.__setattr__(energy, name, value)
    return energy


class StateEnergy(BaseEnergy):
    """The base class of energies over class indices 0 … states − 1; each kind is a frozen dataclass.

    Attributes:
        unary: (batch, positions, states), log-potentials of each label's states.
        transition: (states, states), shared by all steps, or (batch, tables, states, states).
    """

    unary: Any
    transition: Any

    @property
    def num_states(self) -> int:
        return self.unary.shape[2]

    @property
    def is_shared(self) -> bool:
        """Return whether one transition matrix is shared by all examples and steps."""
        return self.transition.ndim == 2

    def _check_potentials(self, num_tables: int) -> None:
        """Raise ValueError if a log-potential has a wrong shape, dtype or device."""
        self._resolve_negative()
        self._check_first()
        leading = () if self.is_shared else (self.batch_size, num_tables)
        check_shape("transition", self.transition, *leading, self.num_states, self.num_states)
        check_like("transition", self.transition, "unary", self.unary)

    def _check_index(self, name: str, index: Tensor, size: int) -> None:
        """Raise ValueError unless a tensor has ``size`` entries, dtype int64 and the energy's device."""
        check_shape(name, index, size)
        if (index.dtype, index.device) != (torch.int64, self.device):
            raise ValueError(
                f"{name}: expected {torch.int64} on {self.device}, got {index.dtype} on {index.device}"
            )

    def _check_states(self, strange: Tensor, where: str = "") -> None:
        """Raise ValueError if any label is marked as ``strange``, because it is no state."""
        wanted = f"labels: expected 0 to {self.num_states - 1}{where}"

        def refuse() -> None:
            raise ValueError(f"{wanted}, got other values for {int(strange.sum())} labels")

        refuse_unless(wanted, (strange,), lambda: ~strange.any(), refuse)

    def _unary_scores(
        self, states: Shaped[Tensor, "*samples batch positions"]
    ) -> Float[Tensor, "*samples batch positions"]:
        """Return the log-potential unary_t(y_t) of each label's state."""
        return self.unary.expand(*states.shape, -1).gather(-1, states[..., None]).squeeze(-1)

    def add_unary(self: Any, unary: Float[Tensor, "#batch positions states"]) -> Any:
        """Return the energy with Σ_t unary_t(y_t) added to the score; see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary)


_PARTS = sorted(name for name in vars(Energy) if not name.startswith("_"))


def check_energy(energy: Any) -> None:
    """Raise TypeError naming the missing attributes if an object does not follow :class:`Energy`.

    Examples:
        >>> from lmbm_torch.energies.base import check_energy
        >>> check_energy("no energy")
        Traceback (most recent call last):
        TypeError: energy: expected the attributes of lmbm_torch.energies.Energy, got str without ...
    """
    missing = [name for name in _PARTS if not hasattr(energy, name)]
    if missing:
        raise TypeError(
            f"energy: expected the attributes of lmbm_torch.energies.Energy, got {type(energy).__name__} "
            f"without {', '.join(missing)}"
        )


def check_precision(dtype: torch.dtype) -> None:
    """Raise ValueError unless the dtype of log-potentials is float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"energy: expected float32 or float64, got {dtype}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` holds floating-point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point dtype, got {tensor.dtype}")


def check_cliques(cliques: Iterable[Sequence[int]], num_labels: int, *, least: int = 1) -> None:
    """Raise ValueError unless each clique holds at least ``least`` distinct labels."""
    names = set(range(num_labels))
    for clique in cliques:
        if len(clique) < least or len(set(clique)) < len(clique) or not set(clique) <= names:
            wanted = "distinct labels" if least == 1 else f"{least} or more distinct labels"
            raise ValueError(f"cliques: expected {wanted} below {num_labels}, got {clique}")


@overload
def to_spins(labels: Tensor, dtype: torch.dtype | None = None) -> Tensor: ...
@overload
def to_spins(labels: np.ndarray, dtype: np.dtype | type | None = None) -> np.ndarray: ...
def to_spins(labels, dtype=None):
    """Convert {0, 1} labels to {−1, +1} spins s = 2y − 1; NaN (a missing label) stays NaN.

    The result has ``dtype``; by default the dtype of floating-point labels; otherwise torch's default dtype.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies.base import to_spins
        >>> to_spins(torch.tensor([[0, 1, 1]]))
        tensor([[-1.,  1.,  1.]])
    """
    if isinstance(labels, Tensor):
        if dtype is None:
            dtype = labels.dtype if labels.is_floating_point() else torch.get_default_dtype()
        return labels.to(dtype) * 2 - 1
    if dtype is None:
        dtype = labels.dtype if np.issubdtype(labels.dtype, np.floating) else np.float64
    return labels.astype(dtype) * 2 - 1


def known_spins(energy: Energy, known: Known | None) -> Float[Tensor, "_batch labels"]:
    """Return spins of the known labels in float64, 0 for free labels; a single row if no label is known.

    Raises:
        ValueError: ``known`` has another shape than (batch, labels), or values other than 0, 1 and NaN.
    """
    if known is None:
        return torch.zeros(1, energy.num_labels, dtype=torch.float64, device=energy.device)
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    return to_spins(known, torch.float64).nan_to_num(0.0)


def cliques_up_to(num_labels: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """List every set of 3 to ``degree`` labels, smaller sets first; an empty list for degrees 1 and 2.

    Examples:
        >>> from lmbm_torch.energies.base import cliques_up_to
        >>> len(cliques_up_to(num_labels=4, degree=3))
        4
    """
    sizes = range(3, min(degree, num_labels) + 1)
    return tuple(clique for size in sizes for clique in combinations(range(num_labels), size))
