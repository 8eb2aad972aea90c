"""Training of sigmoid belief networks, linear or with a kernel.

Blocks of labels are trained in parallel by joblib's workers. Labels can be trained independently, unless a
label has missing values: these are predicted before later labels, for which the label is a parent, are
trained. Therefore training has stages, each of which ends with a label with missing values.

The parents of a label are all earlier labels, or a few of them, chosen by the gradient of the dual.
Cross-validation chooses the largest number of parents: for each number in ``COUNTS``, a sample of the labels
is trained without each fold, and the number with the least held-out loss is taken (the smaller one of equally
good numbers). Training for a number starts from the duals for the number before, and ends at a relative
duality gap of 0.01; for a thousand labels the choice costs about a tenth of the whole fit.

On a stream of instances belief networks are trained by Pegasos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from lmbm_torch.checks import check_count
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.common.base import StructuredClassifier
from lmbm_torch.estimators.common.calls import bar, progress
from lmbm_torch.estimators.common.kernels import Kernel
from lmbm_torch.estimators.common.spreading import Kept, keep, spread, workers
from lmbm_torch.estimators.networks import kernel_blocks, orderings
from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.dual import NETWORK_SOLVERS, DualProblem, Path, dual_problem, fit_dual, kernel_problem
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.base import relative_gap, run
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks import dual_coordinate, kernel_dual_coordinate, pegasos
from lmbm_torch.solvers.networks.chosen_parents import ManyLabels, held_out_losses, solve_block
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import Features, LabelProblems, NetworkState, feature_rows, unsolved

# Numbers of parents to choose from.
COUNTS = (5, 10, 20, 40, 80)
# Number of labels on which the number of parents is chosen; these are evenly spaced along the order.
SAMPLED = 32
# Number of folds of this choice.
FOLDS = 3


@dataclass(frozen=True)
class _Block(NetworkState):
    """The solver's state in a process that only trains some of a stage's labels.

    Args:
        positions: positions, in the order of labels, of the labels to train.
    """

    positions: Sequence[int] = ()

    def solved(self, tol: float) -> bool:
        """Return whether all labels of the block have a relative duality gap of at most ``tol``."""
        return not unsolved(self, np.array(self.positions), tol).any()


def _limits(state: _Block, tol: float, left: int, watched: bool) -> dict[str, Any]:
    return dual_coordinate.limits(state, tol, left, watched) | {"positions": state.positions}


# The solver in workers: it ends after one stage, because workers are sent the predicted missing labels anew.
BLOCKS: Any = SimpleNamespace(init=dual_coordinate.init, update=dual_coordinate.update, limits=_limits)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The data that a worker needs for a stage: problems and state of all labels, and solver settings.

    Args:
        problems: the problems without features, which the workers keep from stage to stage.
    """

    problems: LabelProblems
    state: NetworkState
    tol: float
    max_iter: int
    seed: int


class _Solved(NamedTuple):
    """The solution for a block of labels.

    Args:
        dual_coef: (labels, instances), the dual variables.
        weights: (columns, labels), the weights of features, parents and intercept.
        num_iters: number of rounds of the solver, including earlier stages.
    """

    dual_coef: np.ndarray
    weights: np.ndarray
    num_iters: int


def can_spread(dual: DualProblem) -> bool:
    """Return whether the solver can train at least two labels in parallel."""
    problems = dual.problem
    is_linear = dual.solver is dual_coordinate and isinstance(problems, LabelProblems)
    can = is_linear or kernel_blocks.can_spread(problems)
    return can and any(len(stage) > 1 for stage in problems.stages())


def fit_blocks(
    dual: DualProblem, *, tol: float, max_iter: int, start: NetworkState | None, kept: Kept | None
) -> NetworkState:
    """Train in parallel; the result is exactly that of :func:`~lmbm_torch.fitting.dual.fit_dual`.

    For each stage, workers are sent the labels with predicted missing values; features are sent only once.

    Args:
        kept: handle of the features, if the workers already hold them.
    """
    problems: Any = dual.problem
    solver: Any = dual.solver
    state: Any = dual.init() if start is None else start
    limits = {"tol": tol, "max_iter": max_iter, "seed": dual.settings["seed"]}
    is_linear = solver is dual_coordinate
    rows: Any = keep(problems.features) if is_linear and kept is None else kept
    while problems is not None:
        if is_linear:
            work = _Work(problems=problems, state=state, **limits)
            state = _with(state, _stage_solved(work, rows))
        else:
            state = kernel_blocks.stage_solved(problems, state, **limits)
        problems, state = solver.next_stage(problems, state)
    dual.assign(state.weights)
    return state


def _stage_solved(work: _Work, kept: Kept) -> Iterator[tuple[np.ndarray, _Solved]]:
    """Train the labels of the current stage in parallel; return pairs of label indices and solution."""
    stage = work.state.stage
    assert stage is not None
    blocks = np.array_split(np.array(stage), min(workers(), len(stage)))
    # Train a single block in this process, because sending it to a worker would not save time.
    if len(blocks) == 1:
        return zip(blocks, [_solved(work.problems, work, blocks[0])], strict=True)
    sent = replace(work, problems=replace(work.problems, features=work.problems.features[:0]))
    return zip(blocks, spread(_solve, sent, blocks, kept), strict=True)


def _with(state: NetworkState, found: Iterable[tuple[np.ndarray, _Solved]]) -> NetworkState:
    """Write the solutions of some labels into a copy of the state; duality gaps are computed later."""
    duals, weights, rounds = state.dual_coef.copy(), state.weights.copy(), state.num_iters
    for labels, part in found:
        duals[labels], weights[:, labels] = part.dual_coef, part.weights
        rounds = max(rounds, part.num_iters)
    return replace(state, dual_coef=duals, weights=weights, num_iters=rounds)


def _solve(work: _Work, labels: np.ndarray, features: Features) -> _Solved:
    """Train some labels in a worker, with the features that the worker holds."""
    return _solved(_writable(replace(work.problems, features=features)), work, labels)


def _solved(problems: LabelProblems, work: _Work, labels: np.ndarray) -> _Solved:
    start = _Block(**vars(work.state), positions=labels.tolist())
    limits: Any = {"tol": work.tol, "max_iter": work.max_iter, "seed": work.seed}
    state = run(BLOCKS, problems, start=start, **limits)
    return _Solved(state.dual_coef[labels], state.weights[:, labels], state.num_iters)


def _writable(problems: LabelProblems) -> LabelProblems:
    """Copy the problems' arrays: for read-only (shared) memory, compiled code would be compiled again."""
    values = {part.name: getattr(problems, part.name) for part in fields(problems)}
    arrays = {name: np.array(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(problems, **({"features": problems.features.copy()} | arrays))


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The settings of all trainers of a belief network.

    Args:
        C: weight of the losses.
        margin: the margin γ of the hinge losses.
        degree: size of the largest cliques of labels.
        solver: a key of :data:`~lmbm_torch.fitting.dual.NETWORK_SOLVERS`.
        ordering: see :func:`~lmbm_torch.estimators.networks.orderings.chosen`.
        parents: (labels, labels), True for each label's parents in a given graph; None for no given graph.
        tol, max_iter: relative duality gap, and number of passes, at which training ends.
        draw_seed: function that draws a seed from the estimator's random state.
        is_seeded: whether the random state was given; otherwise random choices are the same in every fit.
        name, verbose: of the progress bar, see :func:`~lmbm_torch.estimators.common.calls.bar`.
    """

    C: float
    margin: float
    degree: int
    solver: str
    ordering: Any
    parents: np.ndarray | None
    tol: float
    max_iter: int
    draw_seed: Callable[[], int]
    is_seeded: bool
    name: str
    verbose: int


class Trained(NamedTuple):
    """A trained belief network, whose features are scaled as in training.

    Args:
        model: the network; with a kernel its features are kernel expansions, one for each label.
        ordering: (labels,), the label at each position of the order.
        parents: (labels, labels), the weights of label i's parents in row i.
        objective: the value of the training objective.
        gap: the relative duality gap of all labels together.
        num_iters: passes of the solver.
        mean_loss: the mean hinge loss of the training instances, with missing labels completed.
        max_parents: the largest number of parents; None if all earlier labels are parents.
        dual_coef: (labels, instances), coefficients of the kernel values; None for linear networks.
        shared: results that the next network with the same kernel and instances can reuse.
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


def train_linear(
    settings: NetworkSettings,
    X: Features,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    label_weight: np.ndarray | None,
    path: Path,
) -> Trained:
    """Train a linear belief network in which all earlier labels, or those of a given graph, are parents.

    Args:
        X: (instances, features), scaled for training.
        labels: (instances, labels) in {0, 1}, NaN where missing.
        sample_weight: (instances,), weights of the instances in the choice of the order.
        label_weight: (instances,) or (instances, labels), weights of the losses.
        path: holds the order and the duals of an earlier fit to start from; the new ones are stored there.
    """
    seed = settings.draw_seed()
    # Convert the features to the memory layout of the solvers once, before workers get a copy.
    rows: Any = feature_rows(X)
    kept = keep(rows)
    order = _ordering(settings, path, rows, labels, seed=seed, sample_weight=sample_weight, kept=kept)
    with torch.device("cpu"):
        model = SigmoidBeliefNetwork(rows.shape[1], labels.shape[1], order.tolist(), settings.degree).double()
    common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": label_weight}
    common["parents"] = settings.parents
    dual = dual_problem(model, rows, labels, solver=settings.solver, seed=seed, **common)
    duals, start = path.duals(dual.problem, settings.C), None
    if duals is not None and settings.solver != "pegasos":
        start = NETWORK_SOLVERS[settings.solver].init(dual.problem, duals)
    state = solved(settings, dual, start=start, kept=kept)
    path.C, path.state, path.ordering = settings.C, state, order
    losses = dual.problem.complete(state.weights).hinge(state.weights)
    return _trained(model, dual, state, losses)


def train_kernel(
    settings: NetworkSettings,
    known: SharedKernel,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    label_weight: np.ndarray | None,
    path: Path,
    parent_scale: float,
) -> Trained:
    """Train a kernel belief network in which all earlier labels, or those of a given graph, are parents.

    Args:
        known: the kernel, and results of earlier networks with the same kernel and instances.
        labels, sample_weight, label_weight, path: see :func:`train_linear`.
        parent_scale: weight of the parents in the joint kernel, see
            :class:`~lmbm_torch.solvers.networks.kernel_problems.KernelLabelProblems`.
    """
    seed = settings.draw_seed()
    order = _ordering(settings, path, known.gram, labels, seed=seed, sample_weight=sample_weight)
    if known.template is not None:
        model, problems = known.template.in_order(order)
        dual = kernel_problem(model, problems, seed)
    else:
        # The network's features are the labels' kernel expansions, so there are as many features as labels.
        size = labels.shape[1]
        with torch.device("cpu"):
            model = SigmoidBeliefNetwork(size, size, order.tolist(), settings.degree).double()
        common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": label_weight}
        common |= {"parent_scale": parent_scale, "solver": settings.solver, "parents": settings.parents}
        dual = dual_problem(model, known.gram, labels, seed=seed, **common)
    start = kernel_dual_coordinate.start(dual.problem, known.solutions) if known.solutions else None
    state = solved(settings, dual, start=start)
    path.C, path.state, path.ordering = settings.C, state, order
    losses = dual.problem.complete(state.weights).losses(state.fields)
    network = dual.problem.network(state.weights)
    shared = known.after(Solved(model, dual.problem, state))
    return _trained(model, dual, state, losses)._replace(dual_coef=network.features, shared=shared)


def solved(settings: NetworkSettings, dual: DualProblem, *, start: Any, kept: Kept | None = None) -> Any:
    """Run the solver, in parallel if possible, set the weights of the model, and return the last state.

    Args:
        start: state to start from; None to start from duals of 0.
        kept: handle of the features, if the workers already hold them.
    """
    limits: dict[str, Any] = {"tol": settings.tol, "max_iter": settings.max_iter, "start": start}
    with progress(settings.name, settings.verbose, settings.tol) as tell:
        if workers() > 1 and can_spread(dual):
            return fit_blocks(dual, kept=kept, **limits)
        return fit_dual(dual, progress=tell, **limits)


def _ordering(
    settings: NetworkSettings,
    path: Path,
    inputs: Features | Gram,
    labels: np.ndarray,
    *,
    seed: int,
    **options: Any,
) -> np.ndarray:
    """Return the order of labels, (labels,): the order of an earlier fit in ``path``, or a new one."""
    if path.ordering is not None:
        return path.ordering
    # Without a given random state, use a fixed seed for the default order, so each fit has the same order.
    is_free = not settings.is_seeded and isinstance(settings.ordering, str)
    folds = 0 if is_free and settings.ordering in ("auto", recipe.ORDERING) else seed
    common: Any = {"C": settings.C, "draw_seed": lambda: folds, **options}
    return orderings.chosen(settings.ordering, inputs, labels, **common)


def _trained(model: SigmoidBeliefNetwork, dual: DualProblem, state: Any, losses: np.ndarray) -> Trained:
    """Collect the results of training from the solver's last state and losses (instances, labels)."""
    parents = dual.problem.network(state.weights).parents
    # Each label has a separate objective: the network's objective is the sum.
    objective, mean_loss = float(np.sum(state.primal)), float(losses.sum(1).mean())
    return Trained(model, dual.problem.ordering, parents, objective, state.gap, state.num_iters, mean_loss)


class Solved(NamedTuple):
    """A trained kernel network, with its training problems and the solver's last state."""

    model: SigmoidBeliefNetwork
    problems: KernelLabelProblems
    state: KernelState

    def in_order(self, ordering: np.ndarray) -> tuple[SigmoidBeliefNetwork, KernelLabelProblems]:
        """Return the model and the training problems for a new order of the labels, (labels,)."""
        return self.model.in_order(ordering), self.problems.in_order(ordering)


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """The data that networks with the same kernel and instances share.

    Args:
        kernel: the kernel, with parameters such as gamma computed from these instances.
        gram: kernel values of all pairs of instances.
        solutions: solutions of earlier networks, from which further networks start.
        last: the network trained last.
        template: a network from which further networks differ only by the order of labels; no cliques.
    """

    kernel: Kernel
    gram: Gram
    solutions: tuple[Expansions, ...] = ()
    last: Solved | None = None
    template: Solved | None = None

    def after(self, solved: Solved) -> SharedKernel:
        """Add a network's solution, in place of an earlier one with the same parents; return the new data."""
        new = kernel_dual_coordinate.solution(solved.problems, solved.state)
        others = [one for one in self.solutions if one.parents.tobytes() != new.parents.tobytes()]
        return replace(self, solutions=(*others, new), last=solved)

    def as_template(self) -> SharedKernel:
        """Return the data for networks that differ from the last network only by the order of labels."""
        last = self.last
        return self if last is None or last.problems.cliques else replace(self, template=last)


def train_few_parents(
    settings: NetworkSettings,
    X: Features,
    labels: Any,
    sample_weight: np.ndarray | None,
    label_weight: np.ndarray | None,
    path: Path,
    max_parents: int | str | None,
) -> Trained:
    """Train a linear belief network whose labels have at most ``max_parents`` parents.

    Args:
        X: (instances, features), scaled for training.
        labels: (instances, labels) in {0, 1}, dense or sparse.
        sample_weight: (instances,), weights of the instances in the choice of the order.
        label_weight: (instances,) or (instances, labels), weights of the losses.
        path: holds the order of an earlier fit, if any; the new order is stored there.
        max_parents: largest number of parents, or ``"auto"`` to choose the number by cross-validation.
    """
    order = path.ordering
    if order is None:
        common: Any = {"C": settings.C, "sample_weight": sample_weight, "draw_seed": settings.draw_seed}
        common["default"] = recipe.ORDERING_OF_CHOSEN_PARENTS
        order = orderings.chosen(settings.ordering, X, labels, **common)
    path.C, path.ordering = settings.C, order
    if label_weight is not None and label_weight.ndim == 2:
        label_weight = label_weight[:, order]
    problems = ManyLabels(
        features=X,
        labels=sparse.csc_array(labels, dtype=np.float64)[:, order],
        C=settings.C,
        sample_weight=label_weight,
        margin=settings.margin,
    )
    kept, most = keep(problems), max_parents
    if not isinstance(most, int):
        seed = settings.draw_seed() if settings.is_seeded else 0
        most = chosen_count(problems, kept=kept, max_iter=settings.max_iter, seed=seed)
    solved = _solve_blocks(settings, problems, kept, most)
    by_label = np.argsort(order)
    parents: Any = sparse.vstack([part.parents for part in solved], format="csr")
    parents = parents[by_label][:, by_label].toarray()
    weight = np.concatenate([part.features for part in solved])[by_label]
    bias = np.concatenate([part.bias for part in solved])[by_label]
    with torch.device("cpu"):
        model = SigmoidBeliefNetwork(weight.shape[1], len(order), order.tolist(), 2).double()
    model.assign(*map(torch.from_numpy, (weight, bias, parents)))
    primal, dual, losses, rounds = map(
        np.concatenate,
        zip(*((part.primal, part.dual, part.losses, part.num_iters) for part in solved), strict=True),
    )
    gap = float(relative_gap(primal.sum() - dual.sum(), primal.sum()))
    mean_loss = float(losses.sum() / labels.shape[0])
    report = float(primal.sum()), gap, int(rounds.max()), mean_loss
    return Trained(model, order, parents, *report, max_parents=most)


def _solve_blocks(settings: NetworkSettings, problems: ManyLabels, kept: Kept, max_parents: int) -> list[Any]:
    """Train blocks of labels in parallel, by the workers of joblib's active backend."""
    limits = {"tol": settings.tol, "max_iter": settings.max_iter, "seed": settings.draw_seed()}
    solve = partial(solve_block, max_parents=max_parents, **limits)
    solved, count = [], problems.labels.shape[1]
    with bar(settings.name, settings.verbose) as tell:
        for part in spread(solve, kept, problems.blocks()):
            solved.append(part)
            done = sum(len(each.bias) for each in solved)
            if tell is not None:
                tell(done / count, f"{done} of {count} labels")
    return solved


def chosen_count(problems: ManyLabels, *, max_iter: int, seed: int, kept: Kept | None = None) -> int:
    """Return the number of parents in ``COUNTS`` with the least loss on held-out instances.

    Args:
        max_iter: largest number of rounds of the solver.
        seed: seed of the folds, and of the order in which the solver visits instances.
        kept: handle of the problems, if the workers already hold them.
    """
    instances, count = problems.labels.shape
    if instances < FOLDS:
        return COUNTS[0]
    # Sample labels from position 1 on, because the label at position 0 has no parents.
    labels = np.unique(np.linspace(1, count - 1, min(SAMPLED, count - 1)).round().astype(int)).tolist()
    settings = {"labels": labels, "counts": COUNTS, "max_iter": max_iter, "seed": seed}
    folds = KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty(instances))
    losses = sum(spread(partial(held_out_losses, **settings), problems if kept is None else kept, folds))
    return COUNTS[int(np.argmin(losses))]


@dataclass(frozen=True, kw_only=True)
class StreamTrainer:
    """A trainer of belief networks on a stream of instances, by a step of Pegasos for each instance.

    Args:
        ordering: (labels,), the label at each position of the order.
        epoch_size: number of instances whose losses C weighs, as if they were all training instances.
        seed: seed of the order of the instances in each call.
        visits: number of steps so far.
        sums: (2, columns, labels), state of :func:`pegasos.step_along`; None before the first step.
    """

    settings: NetworkSettings
    ordering: np.ndarray
    epoch_size: int
    seed: int
    visits: int = 0
    sums: np.ndarray | None = None

    @classmethod
    def begun(
        cls,
        settings: NetworkSettings,
        X: Features,
        labels: np.ndarray,
        sample_weight: np.ndarray | None,
        epoch_size: int | None,
    ) -> StreamTrainer:
        """Return a trainer whose order, epoch size and seed are chosen from the first call's instances.

        Args:
            X: (instances, features), scaled for training.
            epoch_size: size of an epoch; None for the number of instances of the first call.
        """
        size = len(labels) if epoch_size is None else epoch_size
        check_count("epoch_size", size)
        seed = settings.draw_seed() if settings.is_seeded else 0
        common: Any = {"C": settings.C, "draw_seed": lambda: seed, "sample_weight": sample_weight}
        order = orderings.chosen(settings.ordering, X, labels, default=recipe.ORDERING_OF_STREAMS, **common)
        return cls(settings=settings, ordering=order, epoch_size=size, seed=seed)

    def train(
        self, X: Features, labels: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[StreamTrainer, Trained]:
        """Run a pass over the instances; return the new trainer and the network, without a duality gap.

        Args:
            X: (instances, features), scaled for training.
            labels: (instances, labels) in {0, 1}.
        """
        settings = self.settings
        width: int = X.shape[1]  # pyright: ignore[reportOptionalSubscript]
        with torch.device("cpu"):
            model = SigmoidBeliefNetwork(
                width, labels.shape[1], self.ordering.tolist(), settings.degree
            ).double()
        common: Any = {"C": settings.C, "margin": settings.margin, "sample_weight": sample_weight}
        dual = dual_problem(model, X, labels, solver="pegasos", **common)
        shape = 2, dual.problem.num_columns, labels.shape[1]
        sums = np.zeros(shape) if self.sums is None else self.sums.copy()
        order = np.random.default_rng((self.seed, self.visits)).permutation(len(labels))
        pegasos.step_along(dual.problem, sums, self.visits, order, self.epoch_size)
        after = replace(self, sums=sums, visits=self.visits + len(labels))
        learned = pegasos.mean_weights(sums, after.visits)
        dual.assign(learned)
        parents = dual.problem.network(learned).parents
        epochs = max(1, round(after.visits / self.epoch_size))
        mean_loss = float(dual.problem.hinge(learned).sum(1).mean())
        return after, Trained(model, self.ordering, parents, np.nan, np.nan, epochs, mean_loss)


def labels_of_call(
    classifier: StructuredClassifier, y: Any, classes: Sequence[Any] | np.ndarray | None, *, is_first: bool
) -> np.ndarray:
    """Convert targets of ``partial_fit`` to a matrix (instances, labels); the first call sets the classes.

    Raises:
        ValueError: targets or labels are missing, or classes or labels differ from those of the first call.
    """
    targets.check_given(classifier, y)
    dense = targets.dense(y)
    if targets.is_label_matrix(dense):
        labels = targets.label_matrix("y", dense, allow_missing=False)
        if is_first:
            names = getattr(y, "columns", None) if classes is None else classes
            if names is not None and len(names) != labels.shape[1]:
                raise ValueError(f"classes: expected {labels.shape[1]} names of labels, got {len(names)}")
            classifier._note_labels(labels.shape[1], None if names is None else [str(name) for name in names])
            classifier.classes_ = np.tile([0, 1], (labels.shape[1], 1))
        elif classifier.binarizer_ is not None or labels.shape[1] != len(classifier.classes_):
            raise ValueError(f"y: expected the labels of the first call, got {labels.shape[1]} labels")
        else:
            targets.check_columns(y, classifier.label_names_)
        return labels
    y = column_or_1d(dense)
    check_classification_targets(y)
    if is_first:
        if classes is None and getattr(classifier, "binarizer_", None) is not None:
            classes = classifier.classes_
        if classes is None:
            raise ValueError("classes: expected all classes at the first call of partial_fit, got None")
        classifier.label_names_ = None
        classifier.binarizer_ = LabelBinarizer().fit(np.asarray(classes))
        classifier.classes_ = classifier.binarizer_.classes_
    elif classifier.binarizer_ is None:
        raise ValueError("y: expected a label matrix as in the first call, got classes")
    if len(others := np.setdiff1d(y, classifier.classes_)):
        raise ValueError(f"y: expected the classes of the first call, got {others[0]!r}")
    labels: Any = classifier.binarizer_.transform(y)
    return np.asarray(labels.todense() if sparse.issparse(labels) else labels, np.float64)
