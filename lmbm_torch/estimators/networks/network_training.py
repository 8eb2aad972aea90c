"""Training of sigmoid belief networks whose labels see all labels before them, linear or with a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from lmbm_torch.estimators.common.calls import progress
from lmbm_torch.estimators.common.kernels import Kernel
from lmbm_torch.estimators.common.spreading import keep
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.estimators.networks.label_blocks import solved
from lmbm_torch.fitting.dual import NETWORK_SOLVERS, DualProblem, Path, dual_problem, kernel_problem
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks import kernel_dual_coordinate, kernel_splitting
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features, feature_rows


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The settings that all trainers of a network share.

    Args:
        C: weight of the losses.
        margin: γ.
        degree: size of the largest cliques of labels.
        solver: a name in :data:`~lmbm_torch.fitting.dual.NETWORK_SOLVERS`.
        ordering: see :func:`~lmbm_torch.estimators.networks.orderings.chosen`.
        tol, max_iter: relative duality gap, and passes, at which training ends.
        draw_seed: draws a seed from the random state of the estimator.
        is_seeded: whether the random state was given; else choices are the same however often a fit is made.
        name, verbose: of the bar, see :func:`~lmbm_torch.estimators.common.calls.bar`.
    """

    C: float
    margin: float
    degree: int
    solver: str
    ordering: Any
    tol: float
    max_iter: int
    draw_seed: Callable[[], int]
    is_seeded: bool
    name: str
    verbose: int


class Trained(NamedTuple):
    """A network as training leaves it, of features in the units of training.

    Args:
        model: its weights; of a kernel those of the expansions.
        ordering: (labels,).
        parents: (labels, labels), row i the weights of the parents of label i.
        objective: the value of the training objective.
        gap: the relative duality gap, of all labels together.
        num_iters: passes of the solver.
        mean_loss: the mean hinge loss of the training instances, missing labels completed.
        max_parents: so many at most; None where all labels before a label are its parents.
        dual_coef: (labels, instances), of a kernel.
        shared: what the next network with this kernel and these instances can use.
    """

    model: SigmoidBeliefNetwork
    ordering: np.ndarray
    parents: np.ndarray
    objective: float
    gap: float
    num_iters: int
    mean_loss: float
    max_parents: int | None = None
    dual_coef: np.ndarray | None = None
    shared: SharedKernel | None = None


@dataclass(frozen=True)
class DenseTrainer:
    """Learns a network of features, whose labels see all labels before them."""

    settings: NetworkSettings

    def train(
        self,
        X: Features,
        labels: np.ndarray,
        sample_weight: np.ndarray | None,
        label_weight: np.ndarray | None,
        path: Path,
    ) -> Trained:
        """Return the network of least loss.

        Args:
            X: (instances, features), in the units of training.
            labels: (instances, labels) in {0, 1}, NaN where missing.
            sample_weight: (instances,), of the ordering.
            label_weight: (instances,) or (instances, labels), of the losses.
            path: where the ordering and the first duals come from, and where the solution goes.
        """
        settings, seed = self.settings, self.settings.draw_seed()
        # As the solvers walk them, here and where workers keep them.
        rows: Any = feature_rows(X)
        kept = keep(rows)
        order = _ordering(settings, path, rows, labels, seed=seed, sample_weight=sample_weight, kept=kept)
        with torch.device("cpu"):
            model = SigmoidBeliefNetwork(
                rows.shape[1], labels.shape[1], order.tolist(), settings.degree
            ).double()
        common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": label_weight}
        dual = dual_problem(model, rows, labels, solver=settings.solver, seed=seed, **common)
        duals, start = path.duals(dual.problem, settings.C), None
        if duals is not None and settings.solver != "pegasos":
            start = NETWORK_SOLVERS[settings.solver].init(dual.problem, duals)
        with progress(settings.name, settings.verbose, settings.tol) as tell:
            limits = {"tol": settings.tol, "max_iter": settings.max_iter}
            state = solved(dual, start=start, kept=kept, progress=tell, **limits)
        path.C, path.state, path.ordering = settings.C, state, order
        losses = dual.problem.complete(state.weights).hinge(state.weights)
        return _trained(model, dual, state, losses)


@dataclass(frozen=True)
class KernelTrainer:
    """Learns a network with a kernel, whose labels see all labels before them.

    Args:
        parent_scale: of the parents beside the kernel, see
            :class:`~lmbm_torch.solvers.networks.kernel_problems.KernelLabelProblems`.
    """

    settings: NetworkSettings
    parent_scale: float

    def train(
        self,
        known: SharedKernel,
        labels: np.ndarray,
        sample_weight: np.ndarray | None,
        label_weight: np.ndarray | None,
        path: Path,
    ) -> Trained:
        """Return the network of least loss.

        Args:
            known: the kernel, and what networks with the kernel and these instances have left.
            labels, sample_weight, label_weight, path: see :meth:`DenseTrainer.train`.
        """
        settings, seed = self.settings, self.settings.draw_seed()
        order = _ordering(settings, path, known.gram, labels, seed=seed, sample_weight=sample_weight)
        if known.template is not None:
            model, problems = known.template.in_order(order)
            dual = kernel_problem(model, problems, seed)
        else:
            # The network sees the kernel expansion of every label.
            size = labels.shape[1]
            with torch.device("cpu"):
                model = SigmoidBeliefNetwork(size, size, order.tolist(), settings.degree).double()
            common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": label_weight}
            common |= {"parent_scale": self.parent_scale, "solver": settings.solver}
            dual = dual_problem(model, known.gram, labels, seed=seed, **common)
        start = kernel_dual_coordinate.start(dual.problem, known.solutions) if known.solutions else None
        with progress(settings.name, settings.verbose, settings.tol) as tell:
            limits = {"tol": settings.tol, "max_iter": settings.max_iter}
            state = solved(dual, start=start, progress=tell, **limits)
        path.C, path.state, path.ordering = settings.C, state, order
        losses = dual.problem.complete(state.weights).losses(state.fields)
        network = dual.problem.network(state.weights)
        shared = known.after(Solved(model, dual.problem, state))
        return _trained(model, dual, state, losses)._replace(dual_coef=network.features, shared=shared)


def _ordering(
    settings: NetworkSettings,
    path: Path,
    inputs: Features | Gram,
    labels: np.ndarray,
    *,
    seed: int,
    **options: Any,
) -> np.ndarray:
    """Return the label at each position, (labels,): those of the path, or else by the setting."""
    if path.ordering is not None:
        return path.ordering
    # The default ordering is one and the same however often an unseeded fit is repeated.
    is_free = not settings.is_seeded and isinstance(settings.ordering, str)
    folds = 0 if is_free and settings.ordering in ("auto", "f_score") else seed
    return orderings.chosen(settings.ordering, inputs, labels, C=settings.C, seed=folds, **options)


def _trained(model: SigmoidBeliefNetwork, dual: DualProblem, state: Any, losses: np.ndarray) -> Trained:
    """Return the network of a solver's last state, and losses (instances, labels)."""
    parents = dual.problem.network(state.weights).parents
    # The labels have an objective each.
    objective, mean_loss = float(np.sum(state.primal)), float(losses.sum(1).mean())
    return Trained(model, dual.problem.ordering, parents, objective, state.gap, state.num_iters, mean_loss)


class Solved(NamedTuple):
    """A network that is solved."""

    model: SigmoidBeliefNetwork
    problems: KernelLabelProblems
    state: KernelState

    def expansions(self) -> Expansions:
        """Its solution, by label."""
        return kernel_dual_coordinate.solution(self.problems, self.state)

    def in_order(self, ordering: np.ndarray) -> tuple[SigmoidBeliefNetwork, KernelLabelProblems]:
        """Model and problems of a network that differs in its ordering (labels,) alone."""
        return self.model.in_order(ordering), self.problems.in_order(ordering)


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """The shared state of networks with the same kernel and instances.

    Args:
        kernel: as it was resolved for these instances.
        gram: its values between them.
        solutions: from which further networks start.
        last: the network that was solved last.
        template: a network from which further ones differ in their ordering alone, if it has no cliques.
    """

    kernel: Kernel
    gram: Gram
    solutions: tuple[Expansions, ...] = ()
    last: Solved | None = None
    template: Solved | None = None

    def and_also(self, solutions: Sequence[Expansions]) -> SharedKernel:
        """With further solutions, each in place of that with the same parents."""
        new = {each.parents.tobytes() for each in solutions}
        others = [one for one in self.solutions if one.parents.tobytes() not in new]
        return replace(self, solutions=(*others, *solutions))

    def after(self, solved: Solved) -> SharedKernel:
        """With the solution of a network."""
        return replace(self.and_also([solved.expansions()]), last=solved)

    def before(self, orderings: Sequence[np.ndarray], tol: float) -> SharedKernel:
        """For networks that differ from the last one in their ordering alone, with starts where these pay.

        Args:
            orderings: (labels,) each.
            tol: relative gap of the labels.
        """
        last = self.last
        if last is None or last.problems.cliques:
            return self
        known = replace(self, template=last)
        if not kernel_splitting.pays(last.problems, last.state, len(orderings)):
            return known
        return known.and_also(kernel_splitting.starts(last.problems, orderings, [last.expansions()], tol=tol))
