"""A model's hinge problem in the dual, and how its solution becomes the model's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.data.features import Features
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.dual_coordinate import SharedState
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState

State = NetworkState | SharedState
LinearModel = SigmoidBeliefNetwork | BoltzmannMachine
"""Linear in its parameters, so that a dual solver can train it."""


@dataclass(frozen=True)
class DualProblem:
    """One solver, set to one problem.

    Args:
        init: duals, or None for zeros → the state there, everything computed afresh.
        update: state → the state after one more round.
        assign: gives the model a state's weights.
    """

    init: Callable[[np.ndarray | None], Any]
    update: Callable[[Any], Any]
    assign: Callable[[Any], None]


def dual_problem(
    model: LinearModel,
    features: Features,
    labels: np.ndarray,
    *,
    C: float,
    coupling_penalty: float,
    margin: float,
    tol: float,
    seed: int,
) -> DualProblem:
    """The hinge problem of a model over its features, which its encoder has made.

    Args:
        coupling_penalty: of a Boltzmann machine's weights of two or more labels.
        tol: a belief network's labels whose relative gap is at most this are left alone.
        seed: of the order in which a belief network's instances are visited.

    Raises:
        ValueError: what the problems' own ``from_labels`` refuse.
    """
    if isinstance(model, SigmoidBeliefNetwork):
        problems = LabelProblems.from_labels(
            features,
            labels,
            ordering=model.ordering.cpu().numpy(),
            parents=model.degree > 1,
            cliques=model.cliques,
            C=C,
            margin=margin,
        )
        return DualProblem(
            init=partial(dual_coordinate.init, problems),
            update=partial(dual_coordinate.update, problems, tol=tol, seed=seed),
            assign=lambda weights: model.assign(*map(_tensor, problems.network(weights))),
        )
    problem = SharedProblem.from_labels(
        features,
        labels,
        cliques=model.cliques,
        bias=model.bias is not None,
        C=C,
        coupling_penalty=coupling_penalty,
        margin=margin,
    )
    return DualProblem(
        init=partial(proximal_newton.init, problem),
        update=partial(proximal_newton.update, problem),
        assign=partial(_assign_machine, model),
    )


def _assign_machine(model: BoltzmannMachine, weights: SharedWeights) -> None:
    bias = None if model.bias is None else _tensor(weights.features[-1])
    model.assign(_tensor(weights.features[:-1].T), bias, _tensor(weights.cliques))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
