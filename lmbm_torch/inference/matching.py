"""One inference for training and for prediction: a routine and its settings, stored in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference import dual_decomposition, matrix_bp, mean_field
from lmbm_torch.inference.modes import joint_modes, marginal_modes
from lmbm_torch.inference.results import BipartiteMarginals, Decoding

Routine = Callable[..., Any]
"""A bipartite energy and settings → BipartiteMarginals, or a Decoding."""


def _path(routine: Callable[..., Any]) -> str:
    return f"{routine.__module__}.{routine.__qualname__}"


# How labels follow from each routine's answer; a decoder's answer holds them already.
_DECODERS: dict[Routine, Callable[[Routine], Callable[[BipartiteEnergy], Decoding]]] = {
    matrix_bp.marginals: lambda found: partial(marginal_modes, marginals=found),
    mean_field.marginals: lambda found: partial(marginal_modes, marginals=found),
    matrix_bp.max_marginals: lambda found: partial(joint_modes, max_marginals=found),
    matrix_bp.marginal_map: lambda found: found,
    dual_decomposition.marginal_map: lambda found: found,
}
_ROUTINES = {_path(routine): routine for routine in _DECODERS}


class MatchedInference:
    """A routine over bipartite energies and its settings, the same for a loss and for prediction.

    Approximate inference should be the same in training and in test, method and iterations
    (belief_propagation_in_crbms_2017, section 6): the loss calls this object, and :meth:`decode` predicts.
    The number of iterations may change from epoch to epoch
    (:class:`~lmbm_torch.training.callbacks.latent.IterationSchedule`).

    Args:
        routine: :func:`~lmbm_torch.inference.matrix_bp.marginals` or
            :func:`~lmbm_torch.inference.mean_field.marginals`, which predict the marginals' modes,
            :func:`~lmbm_torch.inference.matrix_bp.max_marginals`, the joint MAP, or
            :func:`~lmbm_torch.inference.matrix_bp.marginal_map` or
            :func:`~lmbm_torch.inference.dual_decomposition.marginal_map`, the marginal MAP.
        num_iters: at most, in each call.
        settings: ``tol``, 1e-3 by default as in the paper, and ``damping``.

    Raises:
        ValueError: another routine, or no iteration.
    """

    def __init__(self, routine: Routine, num_iters: int = 10, **settings: float) -> None:
        check_count("num_iters", num_iters)
        if routine not in _DECODERS:
            raise ValueError(f"routine: expected one of {', '.join(_ROUTINES)}, got {_path(routine)}")
        self.routine = routine
        self.num_iters = num_iters
        self.settings = {"tol": 1e-3, **settings}

    def __call__(self, energy: BipartiteEnergy, known: Tensor | None = None) -> Any:
        """The routine's answer."""
        return self.routine(energy, num_iters=self.num_iters, known=known, **self.settings)

    def decode(self, energy: BipartiteEnergy, known: Tensor | None = None) -> Decoding:
        """Labels by the routine's answer; ``known`` ones, {0, 1} or NaN for unknown, stay as they are."""
        return _DECODERS[self.routine](partial(self, known=known))(energy)

    def marginals(self, energy: BipartiteEnergy, known: Tensor | None = None) -> BipartiteMarginals:
        """By as many iterations: of mean field if that is the routine, else of sum-product propagation."""
        routine: Routine = (
            mean_field.marginals if self.routine is mean_field.marginals else matrix_bp.marginals
        )
        return routine(energy, num_iters=self.num_iters, known=known, **self.settings)

    def record(self) -> dict[str, Any]:
        """The routine's path and its settings in plain types, for a checkpoint."""
        return {"routine": _path(self.routine), "num_iters": self.num_iters, "settings": dict(self.settings)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> MatchedInference:
        """The inference that :meth:`record` describes.

        Raises:
            ValueError: an unknown routine.
        """
        if record["routine"] not in _ROUTINES:
            raise ValueError(f"routine: expected one of {', '.join(_ROUTINES)}, got {record['routine']}")
        return cls(_ROUTINES[record["routine"]], record["num_iters"], **record["settings"])

    def check_match(self, trained: dict[str, Any]) -> bool:
        """Whether this is the inference of a training, given its :meth:`record`; warns if not."""
        matches = self.record() == trained
        if not matches:
            warnings.warn(
                f"inference: predicts by {self.record()}, but the model was trained with {trained}: results "
                "are usually worse than with matched inference",
                stacklevel=3,
            )
        return matches
