"""Dual training problems of models, with solvers, and functions that copy solutions to the models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.solvers.base import Solver, run, step
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.machines import dual_coordinate as machine_coordinate
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import (
    dual_coordinate,
    exponentiated_gradient,
    kernel_dual_coordinate,
    pegasos,
)
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features, LabelProblems
from lmbm_torch.solvers.structural import frank_wolfe, smoothing
from lmbm_torch.solvers.structural.label_vectors import (
    Decoder,
    LabelMargins,
    TaskLossOracle,
    label_vector_problem,
)
from lmbm_torch.solvers.structural.problems import LossSettings

NETWORK_SOLVERS = {
    "dual_coordinate": dual_coordinate,
    "exponentiated_gradient": exponentiated_gradient,
    "pegasos": pegasos,
}
MACHINE_SOLVERS = {"proximal_newton": proximal_newton, "dual_coordinate": machine_coordinate}


@dataclass(frozen=True, eq=False)
class DualProblem:
    """The dual training problem of a model, with a solver.

    Args:
        solver: a module of :mod:`lmbm_torch.solvers`.
        problem: the problem to solve.
        assign: function that copies the weights of a solver's state to the model.
        settings: arguments of the solver's ``update``.
    """

    solver: Solver[Any]
    problem: Any
    assign: Callable[[Any], None]
    settings: dict[str, Any] = field(default_factory=dict)

    def init(self, dual_coef: np.ndarray | None = None) -> Any:
        """Return the solver's state for given dual variables; by default all dual variables are 0."""
        return self.solver.init(self.problem, dual_coef)

    def update(self, state: Any, tol: float) -> Any:
        """Make one pass of the solver; belief networks skip labels with a gap of at most ``tol``."""
        return step(self.solver, self.problem, state, tol=tol, **self.settings)


def fit_dual(
    dual: DualProblem,
    *,
    tol: float,
    max_iter: int,
    start: Any = None,
    progress: Callable[[Any], None] | None = None,
) -> Any:
    """Solve a model's dual problem, and set the model's weights.

    Args:
        tol, max_iter, start, progress: see :func:`~lmbm_torch.solvers.base.run`.

    Returns:
        The solver's last state.
    """
    limits = {"tol": tol, "max_iter": max_iter, "start": start, "progress": progress}
    state = run(dual.solver, dual.problem, **limits, **dual.settings)
    dual.assign(state.weights)
    return state


def dual_problem(
    model: SigmoidBeliefNetwork | BoltzmannMachine,
    inputs: Features | Gram,
    labels: np.ndarray,
    *,
    C: float,
    margin: float = 1.0,
    coupling_penalty: float = 1.0,
    parents: np.ndarray | None = None,
    parent_scale: float = 1.0,
    sample_weight: np.ndarray | None = None,
    solver: str | None = None,
    seed: int = 0,
) -> DualProblem:
    """Build the dual problem for training a model with local hinge losses.

    Args:
        inputs: features (instances, features); or, for a belief network, kernel values. With kernel values,
            the model's features are the kernel expansions of the labels, so the weights are a unit matrix.
        labels: (instances, labels) in {0, 1}, for a belief network also NaN.
        coupling_penalty: penalty on the weights of a Boltzmann machine's cliques of two or more labels.
        parents: (labels, labels), for a belief network: True if the label of the column is a parent of the
            label of the row; None for all parents that the model allows.
        parent_scale: with kernel values, the factor of the parents' part of the joint kernel, see
            :class:`KernelLabelProblems`.
        sample_weight: (instances,), or (instances, labels) for a weight of each label; factors on C.
        solver: a name in ``NETWORK_SOLVERS`` or ``MACHINE_SOLVERS``, by default the first; not used for
            kernel values, which have a single solver.
        seed: seed for the order in which the solver visits instances.

    Raises:
        ValueError: the solver is unknown, or the problem's ``from_labels`` refuses an argument.
        TypeError: a Boltzmann machine gets kernel values, or features are neither float32 nor float64.
    """
    shared: dict[str, Any] = {"C": C, "margin": margin, "sample_weight": sample_weight}
    if isinstance(model, BoltzmannMachine):
        if not isinstance(inputs, Features):
            raise TypeError(f"inputs: expected features for a Boltzmann machine, got {type(inputs).__name__}")
        shared |= {"cliques": model.cliques, "bias": model.bias is not None}
        problem = SharedProblem.from_labels(inputs, labels, coupling_penalty=coupling_penalty, **shared)
        module = _chosen(MACHINE_SOLVERS, solver)
        settings = {} if module is proximal_newton else {"seed": seed}
        return DualProblem(
            module, problem, lambda new: _assign_machine(model, new.features.T, new.cliques), settings
        )
    ordering = model.ordering.cpu().numpy()
    shared |= {"ordering": ordering, "cliques": model.cliques}
    shared["parents"] = model.degree > 1 if parents is None else parents
    if not isinstance(inputs, Features):
        problems = KernelLabelProblems.from_labels(inputs, labels, parent_scale=parent_scale, **shared)
        return kernel_problem(model, problems, seed)
    module = _chosen(NETWORK_SOLVERS, solver)
    problems = LabelProblems.from_labels(inputs, labels, **shared)

    def assign_network(weights: np.ndarray) -> None:
        model.assign(*map(_tensor, problems.network(weights)))

    return DualProblem(module, problems, assign_network, {"seed": seed})


def kernel_problem(model: SigmoidBeliefNetwork, problems: KernelLabelProblems, seed: int) -> DualProblem:
    """Combine a belief network with a kernel and the problems of all its labels to a dual problem."""

    def assign_network(weights: np.ndarray) -> None:
        network = problems.network(weights)._replace(features=np.eye(model.num_labels))
        model.assign(*map(_tensor, network))

    return DualProblem(kernel_dual_coordinate, problems, assign_network, {"seed": seed})


def structural_problem(
    model: BoltzmannMachine,
    features: Features,
    labels: np.ndarray,
    decoder: Decoder,
    *,
    seed: int = 0,
    costs: np.ndarray | None = None,
    loss: str = "hamming",
    rescaling: str = "margin",
    **settings: Unpack[LossSettings],
) -> DualProblem:
    """Build the dual problem for training a pairwise Boltzmann machine as a structural SVM.

    Args:
        costs: (instances, labels), the cost of each wrong label; None if all costs are 1.
        loss, rescaling: see :class:`~lmbm_torch.solvers.structural.label_vectors.TaskLossOracle`.

    Raises:
        ValueError, TypeError: see :func:`~lmbm_torch.solvers.structural.label_vectors.label_vector_problem`
            and :class:`~lmbm_torch.solvers.structural.label_vectors.TaskLossOracle`.
    """
    problem = label_vector_problem(
        features,
        labels,
        decoder,
        pairs=[(first, second) for first, second in model.cliques.cliques],
        costs=costs,
        **settings,
    )
    if (loss, rescaling) != ("hamming", "margin"):
        vectors: Any = problem.oracle
        problem = replace(problem, oracle=TaskLossOracle(vectors, loss, rescaling))
    return DualProblem(frank_wolfe, problem, lambda weights: _assign_machine(model, *weights), {"seed": seed})


def summed_problem(dual: DualProblem) -> DualProblem:
    """Replace the solver of a structural SVM by smoothing, which sums over all labellings."""
    return replace(dual, solver=smoothing, problem=LabelMargins.of(dual.problem), settings={})


def _assign_machine(model: BoltzmannMachine, features: np.ndarray, cliques: np.ndarray) -> None:
    """Set a Boltzmann machine's weights; ``features`` is (labels, features + 1), with intercepts last."""
    bias = None if model.bias is None else _tensor(features[:, -1])
    model.assign(_tensor(features[:, :-1]), bias, _tensor(cliques))


def _chosen(solvers: dict[str, Any], name: str | None) -> Any:
    if name is None:
        return next(iter(solvers.values()))
    if name not in solvers:
        *others, last = map(repr, solvers)
        raise ValueError(f"solver: expected {', '.join(others)} or {last}, got {name!r}")
    return solvers[name]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


@dataclass
class Path:
    """The state of a series of fits with different C, each of which starts from the previous solution.

    Attributes:
        C: the C of the previous fit.
        state: the solver's last state in the previous fit.
        ordering: the order of a belief network's labels.
        known: the kernel and its values, which the fits of belief networks with a kernel share.
    """

    C: float | None = None
    state: Any = None
    ordering: np.ndarray | None = None
    known: Any = None

    def duals(self, problem: Any, C: float) -> np.ndarray | None:
        """Scale the previous dual variables to another C as a start; return None in the first fit."""
        if self.state is None or self.C is None:
            return None
        return np.minimum(self.state.dual_coef * (C / self.C), problem.upper)
