"""The interface of all energies, what they share of it, and the coding of labels."""

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
    """A batch of scoring functions over labels; :class:`BaseEnergy` has all of it but ``score``."""

    @property
    def batch_size(self) -> int: ...

    @property
    def num_labels(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def score(self, labels: Labels, /) -> Scores:
        """Log-potential of each labelling; larger is better, and p(y) ∝ exp(score(y))."""
        ...

    def energy(self, labels: Labels, /) -> Scores:
        """−score."""
        ...

    def check_values(self) -> None:
        """Raise ValueError if a tensor holds what inference cannot work with; called where that begins."""

    def select(self, rows: Tensor | slice) -> Energy:
        """The energy of some of the batch's examples."""
        ...

    def add_unary(self, unary: Tensor) -> Energy:
        """The energy whose score is larger by what ``unary`` says of each label: how a loss is added."""
        ...


@runtime_checkable
class MarginEnergy(Energy, Protocol):
    """An energy whose labels each have a local margin, so that hinge losses are defined."""

    def local_margins(self, labels: Labels) -> LabelScores:
        """m_i = s_i z_i: by how much label i agrees with its local field."""
        ...


class kept:  # stands where functools.cached_property would
    """A property that is computed once, without the lock of Python 3.11's: torch.compile has none."""

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
    """The part that energies share; a kind of energy is a frozen dataclass that adds tensors and ``score``.

    Attributes:
        PER_EXAMPLE: the tensors that have a row for each example, or may have, and their number of axes
            where they do; first one that always does, whose dtype and device are those of all. Tensors that
            may be left out are None then.
    """

    PER_EXAMPLE: ClassVar[dict[str, int]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # So that torch.func, such as jvp of a model, goes through energies to their tensors.
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
        """Refuse a first tensor with other axes, with an empty one, or without floating-point numbers."""
        name, axes = next(iter(self.PER_EXAMPLE.items()))
        check_shape(name, self._first, *[None] * axes)
        check_floating(name, self._first)

    def _resolve_negative(self: Any) -> None:
        """Negate what torch has only marked as negative, such as imaginary parts: NumPy does not read it."""
        # What is compiled reads no tensor by NumPy.
        if is_traced():
            return
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, Tensor) and tensor.is_neg():
                object.__setattr__(self, field.name, tensor.resolve_neg())

    def _check_table(self, name: str, *shape: int) -> None:
        """Refuse a tensor, of the batch or of each example, of another shape, dtype or device."""
        table = getattr(self, name)
        check_shape(name, table, *(() if table.ndim == len(shape) else (self.batch_size,)), *shape)
        check_like(name, table, next(iter(self.PER_EXAMPLE)), self._first)

    def energy(self: Any, *labels: Tensor) -> Tensor:
        """−score."""
        return -self.score(*labels)

    def check_values(self) -> None:
        """Raise ValueError for NaN, infinite or enormous log-potentials, or ones of half precision."""
        check_precision(self.dtype)
        for name in self.PER_EXAMPLE:
            if getattr(self, name) is not None:
                check_moderate(name, getattr(self, name))

    def select(self: Any, rows: Tensor | slice) -> Any:
        """The energy of some of the batch's examples."""
        tensors = {name: getattr(self, name) for name in self.PER_EXAMPLE}
        chosen = {
            name: tensor[rows]
            for name, tensor in tensors.items()
            if tensor is not None and tensor.ndim == self.PER_EXAMPLE[name]
        }
        return replace(self, **chosen)

    def to(self: Any, *where: torch.dtype | torch.device | str) -> Any:
        """The energy in another precision, on another device, or both; whole numbers keep their type."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        for each in where:
            for name, tensor in tensors.items():
                if tensor.is_floating_point() or not isinstance(each, torch.dtype):
                    tensors[name] = tensor.to(each)
        return replace(self, **tensors)

    def add_unary(self: Any, unary: Tensor) -> Any:
        """The energy whose score is larger by what ``unary`` says of each label: how a loss is added.

        Args:
            unary: Σ_i unary_i y_i is added, or of labels with several states Σ_t unary_t(y_t); one row may
                serve all examples.

        Raises:
            ValueError: ``unary`` of another shape, dtype or device than the energy's.
            TypeError: a kind of energy to which nothing can be added, such as a directed model, whose score
                is normalised.
        """
        raise TypeError(
            "energy: expected one to whose score terms of single labels can be added, "
            f"got {type(self).__name__}"
        )

    def _check_unary(self, unary: Tensor, like: Tensor) -> None:
        check_shape("unary", unary, 1 if len(unary) == 1 else self.batch_size, *like.shape[1:])
        check_like("unary", unary, "the energy", like)


def _flat(energy: Any) -> tuple[list[Any], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """The values of fields for tensors, and the names of these with whatever else there is."""
    values = {field.name: getattr(energy, field.name) for field in fields(energy)}
    names = tuple(
        field.name
        for field in fields(energy)
        if "Tensor" in str(field.type) and values[field.name] is not None
    )
    return [values.pop(name) for name in names], (names, tuple(values.items()))


def _unflat(kind: type, leaves: Iterable[Any], rest: Any) -> Any:
    """The inverse of :func:`_flat`; without checks, since leaves may be anything meanwhile."""
    names, fixed = rest
    energy = object.__new__(kind)
    for name, value in (*zip(names, leaves, strict=True), *fixed):
        object.__setattr__(energy, name, value)
    return energy


class StateEnergy(BaseEnergy):
    """A batch whose labels are class indices 0 … states − 1; its kinds are frozen dataclasses.

    Attributes:
        unary: (batch, positions, states), log-potentials of each label's state.
        transition: (states, states), the same everywhere, or (batch, tables, states, states).
    """

    unary: Any
    transition: Any

    @property
    def num_states(self) -> int:
        return self.unary.shape[2]

    @property
    def is_shared(self) -> bool:
        """Whether the transition is the same everywhere."""
        return self.transition.ndim == 2

    def _check_potentials(self, num_tables: int) -> None:
        """Refuse log-potentials of another shape, dtype or device; ``num_tables`` are an example's own."""
        self._resolve_negative()
        self._check_first()
        leading = () if self.is_shared else (self.batch_size, num_tables)
        check_shape("transition", self.transition, *leading, self.num_states, self.num_states)
        check_like("transition", self.transition, "unary", self.unary)

    def _check_index(self, name: str, index: Tensor, size: int) -> None:
        """Refuse whole numbers of another size, dtype or device."""
        check_shape(name, index, size)
        if (index.dtype, index.device) != (torch.int64, self.device):
            raise ValueError(
                f"{name}: expected {torch.int64} on {self.device}, got {index.dtype} on {index.device}"
            )

    def _check_states(self, strange: Tensor, where: str = "") -> None:
        """Refuse labels of which some are ``strange``, no states."""
        wanted = f"labels: expected 0 to {self.num_states - 1}{where}"

        def refuse() -> None:
            raise ValueError(f"{wanted}, got {int(strange.sum())} others")

        refuse_unless(wanted, (strange,), lambda: ~strange.any(), refuse)

    def _unary_scores(
        self, states: Shaped[Tensor, "*samples batch positions"]
    ) -> Float[Tensor, "*samples batch positions"]:
        """unary_t(y_t)."""
        return self.unary.expand(*states.shape, -1).gather(-1, states[..., None]).squeeze(-1)

    def add_unary(self: Any, unary: Float[Tensor, "#batch positions states"]) -> Any:
        """The energy whose score is larger by Σ_t unary_t(y_t); see :meth:`BaseEnergy.add_unary`."""
        self._check_unary(unary, self.unary)
        return replace(self, unary=self.unary + unary)


_PARTS = sorted(name for name in vars(Energy) if not name.startswith("_"))


def check_energy(energy: Any) -> None:
    """Refuse an object that lacks a part of :class:`Energy`, and name what it lacks.

    Raises:
        TypeError: it does.
    """
    missing = [name for name in _PARTS if not hasattr(energy, name)]
    if missing:
        raise TypeError(
            f"energy: expected what lmbm_torch.energies.Energy describes, got {type(energy).__name__}, "
            f"which lacks {', '.join(missing)}"
        )


def check_precision(dtype: torch.dtype) -> None:
    """Raise ValueError for another dtype of log-potentials than float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"energy: expected float32 or float64, got {dtype}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` holds floating-point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point dtype, got {tensor.dtype}")


def check_cliques(cliques: Iterable[Sequence[int]], num_labels: int, *, least: int = 1) -> None:
    """Raise ValueError unless each clique holds at least so many labels, all different."""
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
    """s = 2y − 1: {0, 1} labels as {−1, +1} spins; NaN (a missing label) stays NaN.

    The result has ``dtype``, by default the labels' own where that is floating point, else the default one.
    """
    if isinstance(labels, Tensor):
        if dtype is None:
            dtype = labels.dtype if labels.is_floating_point() else torch.get_default_dtype()
        return labels.to(dtype) * 2 - 1
    if dtype is None:
        dtype = labels.dtype if np.issubdtype(labels.dtype, np.floating) else np.float64
    return labels.astype(dtype) * 2 - 1


def known_spins(energy: Energy, known: Known | None) -> Float[Tensor, "_batch labels"]:
    """Return spins of the known labels in float64, 0 for free ones; one row for all where none is known.

    Raises:
        ValueError: ``known`` of another shape or with other values.
    """
    if known is None:
        return torch.zeros(1, energy.num_labels, dtype=torch.float64, device=energy.device)
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    return to_spins(known, torch.float64).nan_to_num(0.0)


def cliques_up_to(num_labels: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Every set of 3 to ``degree`` labels, the smaller ones first; none for degrees 1 and 2."""
    sizes = range(3, min(degree, num_labels) + 1)
    return tuple(clique for size in sizes for clique in combinations(range(num_labels), size))
