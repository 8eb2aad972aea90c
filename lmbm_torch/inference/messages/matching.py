"""Inference that training and prediction share: a routine with the settings, stored in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding
from lmbm_torch.inference.messages import dual_decomposition, matrix_bp, mean_field, scheduled_bp
from lmbm_torch.inference.messages.modes import joint_modes, marginal_modes
from lmbm_torch.kernels.matrix_bp.choosing import Propagation
from lmbm_torch.persistence.stored import Given, Stored

Routine = Callable[..., Any]
"""Function of a bipartite energy and settings that returns BipartiteMarginals or a Decoding."""


def _path(routine: Callable[..., Any]) -> str:
    return f"{routine.__module__}.{routine.__qualname__}"


# For each routine, the function that turns its result into labels; decoders already return labels.
_DECODERS: dict[Routine, Callable[[Routine], Callable[[BipartiteEnergy], Decoding]]] = {
    matrix_bp.marginals: lambda found: partial(marginal_modes, marginals=found),
    mean_field.marginals: lambda found: partial(marginal_modes, marginals=found),
    scheduled_bp.marginals: lambda found: partial(marginal_modes, marginals=found),
    matrix_bp.max_marginals: lambda found: partial(joint_modes, max_marginals=found),
    matrix_bp.marginal_map: lambda found: found,
    dual_decomposition.marginal_map: lambda found: found,
    scheduled_bp.marginal_map: lambda found: found,
}
_ROUTINES = {_path(routine): routine for routine in _DECODERS}


class MatchedInference(Stored):
    """Routine over bipartite energies with the settings, shared by a loss and by prediction.

    Approximate inference should be the same in training and test, in method and number of iterations
    (belief_propagation_in_crbms_2017, section 6). The loss calls the object; :meth:`decode` predicts. The
    number of iterations may change between epochs
    (:class:`~lmbm_torch.training.callbacks.latent.IterationSchedule`).

    Args:
        routine: :func:`~lmbm_torch.inference.messages.matrix_bp.marginals`,
            :func:`~lmbm_torch.inference.messages.mean_field.marginals` or
            :func:`~lmbm_torch.inference.messages.scheduled_bp.marginals`, to predict the marginals' modes;
            :func:`~lmbm_torch.inference.messages.matrix_bp.max_marginals`, for the joint MAP;
            :func:`~lmbm_torch.inference.messages.matrix_bp.marginal_map`,
            :func:`~lmbm_torch.inference.messages.scheduled_bp.marginal_map` or
            :func:`~lmbm_torch.inference.messages.dual_decomposition.marginal_map`, for the marginal MAP.
        num_iters: the largest number of iterations of each call.
        settings: settings of the routine, None for the routine's default: ``tol``, by default 1e-3 as in the
            paper, ``damping``, and for belief propagation ``backend`` and ``message_dtype``, a torch type or
            the name of a type, like ``"float32"``.

    Raises:
        ValueError: the routine is none of these, ``num_iters`` is below 1, the routine has no argument of a
            setting's name, or the backend or the precision of messages is unknown.
    """

    def __init__(self, routine: Routine, num_iters: int = 10, **settings: Any) -> None:
        check_count("num_iters", num_iters)
        if routine not in _DECODERS:
            raise ValueError(f"routine: expected one of {', '.join(_ROUTINES)}, got {_path(routine)}")
        given = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            if name not in signature(routine).parameters:
                raise ValueError(f"{name}: expected None for {_path(routine)}, got {given[name]!r}")
        self.routine = routine
        self.num_iters = num_iters
        self.settings = {"tol": 1e-3, **given}
        if "message_dtype" in given:
            # Store the type by name, because checkpoints hold only plain types.
            self.settings["message_dtype"] = str(given["message_dtype"]).removeprefix("torch.")
        found = self._resolved()
        Propagation(found.get("backend", "auto"), found.get("message_dtype")).check()

    def __call__(self, energy: BipartiteEnergy, known: Tensor | None = None) -> Any:
        return self.routine(energy, num_iters=self.num_iters, known=known, **self._resolved())

    def decode(self, energy: BipartiteEnergy, known: Tensor | None = None) -> Decoding:
        """Return labels from the routine's result, given ``known`` labels: {0, 1}, NaN for a free label."""
        return _DECODERS[self.routine](partial(self, known=known))(energy)

    @property
    def is_mean_field(self) -> bool:
        """Return whether marginals come from mean field rather than belief propagation."""
        return self.routine is mean_field.marginals

    @property
    def decodes_modes(self) -> bool:
        """Return whether labels are the modes of marginals, rather than a joint or marginal MAP."""
        return self.routine in (mean_field.marginals, matrix_bp.marginals, scheduled_bp.marginals)

    def marginals(self, energy: BipartiteEnergy, known: Tensor | None = None) -> BipartiteMarginals:
        """Return the routine's marginals, or sum-product marginals if the routine has none."""
        if self.decodes_modes:
            return self(energy, known)
        settings = {key: value for key, value in self._resolved().items() if key != "temperatures"}
        return matrix_bp.marginals(energy, num_iters=self.num_iters, known=known, **settings)

    def _resolved(self) -> dict[str, Any]:
        """Return the settings as keyword arguments of the routine."""
        if "message_dtype" not in self.settings:
            return self.settings
        name = self.settings["message_dtype"]
        return {**self.settings, "message_dtype": getattr(torch, name, name)}

    def stored_parts(self) -> dict[str, Any]:
        """Return the routine's import path, the number of iterations, and the settings, as plain types."""
        return {"routine": _path(self.routine), "num_iters": self.num_iters, "settings": dict(self.settings)}

    @classmethod
    def from_parts(
        cls, given: Given, *, routine: str, num_iters: int, settings: dict[str, Any]
    ) -> MatchedInference:
        """Restore the inference that :meth:`stored_parts` describes.

        Raises:
            ValueError: the routine is unknown.
        """
        if routine not in _ROUTINES:
            raise ValueError(f"routine: expected one of {', '.join(_ROUTINES)}, got {routine}")
        return cls(_ROUTINES[routine], num_iters, **settings)

    def check_match(self, trained: MatchedInference) -> bool:
        """Return whether the inference equals the ``trained`` one; warn if they differ."""
        own, other = self.stored_parts(), trained.stored_parts()
        matches = own == other
        if not matches:
            warnings.warn(
                f"inference: predicts by {own}, but the model was trained with {other}: results "
                "are usually worse than with matched inference",
                stacklevel=3,
            )
        return matches
