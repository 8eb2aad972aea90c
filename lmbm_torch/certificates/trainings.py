"""Certificates of trainings: data, dual variables, the weights computed from the duals, and the gap."""

from __future__ import annotations

from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from lmbm_torch.certificates.lines import field, joined, line, name
from lmbm_torch.files import Mode, replacing
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.solvers.chains.exponentiated_gradient import ExponentiatedState
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import ChainOracle, padded_chains
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks.problems import Features, LabelProblems
from lmbm_torch.solvers.structural.label_vectors import LabelVectorOracle
from lmbm_torch.solvers.structural.problems import CuttingPlanes, StructuralProblem

__all__ = ["write_training"]


def write_training(
    problem: LabelProblems | SharedProblem | StructuralProblem | ChainKernelProblem,
    state: Any,
    path: str | PathLike,
    *,
    mode: Mode = "x",
) -> str:
    """Write a proof of the duality gap of a trained belief network, Boltzmann machine or structural SVM.

    Args:
        problem: the training problem, such as ``dual_problem(…).problem`` of :mod:`lmbm_torch.fitting.dual`.
        state: the last state of the dual solver, such as ``fit_dual`` returns.
        mode: "x" to refuse an existing file, "w" to replace the file.

    Returns:
        The name of the problem, SHA-256 in hexadecimal digits.

    Raises:
        FileExistsError: the file exists, in mode "x".
        TypeError: the problem is of another kind.
        ValueError: labels are missing, or cliques are tied or have a feature; or a structural SVM over label
            vectors has costs, or a relaxing decoder that returned fractional labels.

    Examples:
        >>> import numpy as np, tempfile
        >>> from lmbm_torch import certificates
        >>> from lmbm_torch.solvers.networks import dual_coordinate
        >>> from lmbm_torch.solvers.networks.problems import LabelProblems
        >>> problem = LabelProblems.from_labels(np.eye(2), np.array([[0.0, 1.0], [1.0, 0.0]]))
        >>> state = dual_coordinate.init(problem)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     name = certificates.write_training(problem, state, f"{folder}/proof.jsonl")
        >>> len(name)
        64
    """
    if isinstance(problem, LabelProblems):
        what, weights = _network(problem, state)
    elif isinstance(problem, SharedProblem):
        what, weights = _machine(problem, state)
    elif isinstance(problem, StructuralProblem):
        is_chains = isinstance(problem.oracle, ChainOracle)
        what, weights = (_chains if is_chains else _structural)(problem, state)
    elif isinstance(problem, ChainKernelProblem):
        what, weights = _kernel_chains(problem, state)
    else:
        raise TypeError(
            "problem: expected LabelProblems, a SharedProblem, a StructuralProblem or a ChainKernelProblem, "
            f"got {type(problem).__name__}"
        )
    values = {"primal": float(np.sum(state.primal)), "dual": float(np.sum(state.dual))}
    with replacing(path, mode) as stream:
        stream.write(line("training", what, weights | values))
    return joined([name(what)])


def _network(problem: LabelProblems, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a belief network's problem and solution as JSON fields, with labels in the original order."""
    if not problem.spins.all():
        raise ValueError("problem: expected known labels, got missing labels")
    order, back = problem.ordering.tolist(), np.argsort(problem.ordering)
    network = problem.network(state.weights)
    pairs = [(order[p], order[k]) for k in range(len(order)) for p in range(problem.shared[k] - 1)]
    larger = [tuple(order[place] for place in clique) for clique in problem.cliques]
    cliques = [*pairs, *larger]
    clique_weights = [network.parents[child, parent] for parent, child in pairs]
    clique_weights += [
        network.parents[clique[::-1]] if len(clique) == 2 else network.cliques[request]
        for clique, request in zip(larger, problem.clique_order, strict=True)
    ]
    upper = problem.upper[:, None].repeat(len(order), 1) if problem.upper.ndim == 1 else problem.upper[back].T
    what = _problem(problem.features, 1.0, problem.spins[back], upper) | {
        "kind": "local hinges",
        "margin": problem.margin,
        "cliques": cliques,
        "owners": [clique[-1:] for clique in cliques],
        "penalty": field(np.ones(len(cliques))),
    }
    proof = {
        "duals": field(state.dual_coef[back].T),
        "feature_weights": field(np.vstack([network.features.T, network.bias])),
        "clique_weights": field(clique_weights),
    }
    return what, proof


def _machine(problem: SharedProblem, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a Boltzmann machine's problem and solution as JSON fields."""
    tied = problem.cliques
    is_plain = all(column is None for column in tied.columns) and set(tied.coefficients) <= {1.0}
    if not is_plain or list(tied.groups) != list(range(len(tied.cliques))):
        raise ValueError("problem: expected cliques with one weight each, got tied cliques or features")
    upper = np.broadcast_to(
        problem.upper.T if problem.upper.ndim == 2 else problem.upper[:, None], problem.spins.T.shape
    )
    what = _problem(problem.features, problem.constant, problem.spins, upper) | {
        "kind": "local hinges",
        "margin": problem.margin,
        "cliques": [list(clique) for clique in tied.cliques],
        "owners": [list(clique) for clique in tied.cliques],
        "penalty": field(problem.penalty),
    }
    proof = {
        "duals": field(state.dual_coef.T),
        "feature_weights": field(state.weights.features),
        "clique_weights": field(state.weights.cliques),
    }
    return what, proof


def _supporting(state: Any) -> tuple[np.ndarray, CuttingPlanes]:
    """Return the positive dual variables of wrong labellings, and the labellings' cutting planes."""
    supports = (state.dual_coef > 0) & (state.planes.loss > 0)
    return state.dual_coef[supports], state.planes.select(supports)


def _structural(problem: StructuralProblem, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a structural SVM over label vectors as JSON fields, with each cutting plane's labelling."""
    oracle, (duals, planes) = problem.oracle, _supporting(state)
    if not isinstance(oracle, LabelVectorOracle) or oracle.costs is not None:
        raise ValueError("problem: expected label vectors with the plain Hamming loss, got another loss")
    is_label = planes.index >= 0
    if not (np.abs(planes.value[is_label]) == 2).all():
        raise ValueError("state: expected labellings of an exact decoder, got fractional labellings")
    labellings = oracle.labels[planes.example]
    labellings[planes.plane[is_label], planes.index[is_label]] ^= 1
    pairs = np.stack([oracle.first, oracle.second], 1).tolist()
    what = _problem(problem.features, 1.0, 2 * oracle.labels.T - 1, problem.upper) | {
        "kind": "structural",
        "cliques": pairs,
        "penalty": field(np.full(len(pairs), problem.coupling_penalty)),
    }
    proof = {
        "duals": field(duals),
        "example": field(planes.example, np.int64),
        "labellings": field(labellings, np.int8),
        "feature_weights": field(state.weights.features.T),
        "clique_weights": field(state.weights.couplings),
    }
    return what, proof


def _chains(problem: StructuralProblem, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a structural SVM over chains as JSON fields, with each cutting plane's labelling."""
    oracle, (duals, planes) = problem.oracle, _supporting(state)
    assert isinstance(oracle, ChainOracle)
    lengths = np.diff(problem.start)[planes.example]
    begins = lengths.cumsum() - lengths
    truths = [oracle.labels[slice(*problem.start[each : each + 2])] for each in planes.example]
    labellings = np.concatenate([oracle.labels[:0], *truths])
    # Recover each plane's labelling: where the labelling differs from the truth, the plane holds 1 for the
    # true state and −1 for the labelling's state; at other positions the plane has no entry.
    is_own = (planes.index >= 0) & (planes.value < 0)
    position, label = divmod(planes.index[is_own], oracle.num_states)
    labellings[begins[planes.plane[is_own]] + position] = label
    what = _labelled_chains(oracle, problem.upper, problem.coupling_penalty)
    what |= {"kind": "chains"} | _rows(problem.features, 1.0)
    proof = {
        "duals": field(duals),
        "example": field(planes.example, np.int64),
        "labellings": field(labellings, np.int32),
        "feature_weights": field(state.weights.features.T),
        "transition_weights": field(state.weights.couplings.reshape(oracle.num_states, -1)),
    }
    return what, proof


def _kernel_chains(problem: ChainKernelProblem, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe chains with a kernel, and the node and edge marginals that solve the dual, as JSON fields."""
    edges = _edges(problem, state) if isinstance(state, ExponentiatedState) else state.edges
    what = _labelled_chains(problem, problem.upper, problem.coupling_penalty)
    what |= {"kind": "chains with a kernel", "gram": field(problem.gram)}
    proof = {
        "nodes": field(state.nodes),
        "edges": field(edges),
        "transition_weights": field(state.transition),
    }
    return what, proof


def _edges(problem: ChainKernelProblem, state: ExponentiatedState) -> np.ndarray:
    """Compute P(y_t, y_{t+1}) from log-potentials, (steps, states, states), one chain after another."""
    found = []
    for x, (first, last) in enumerate(pairwise(problem.start.tolist())):
        chain = padded_chains(state.log_nodes[first:last], state.log_pairs[x], problem.lengths[x : x + 1])
        edges = chain_dp.marginals(chain).edges
        assert edges is not None  # of chains
        found.append(edges[0].numpy())
    return np.concatenate(found)


def _labelled_chains(
    chains: ChainOracle | ChainKernelProblem, upper: np.ndarray, penalty: float
) -> dict[str, Any]:
    """Return JSON fields: the labels, the start of each chain, and the weight of each chain's loss.

    Raises:
        ValueError: some transitions are not allowed.
    """
    if chains.allowed is not None:
        raise ValueError("problem: expected chains with all transitions allowed, got forbidden transitions")
    return {
        "labels": field(chains.labels, np.int32),
        "chains": field(chains.start, np.int64),
        "states": chains.num_states,
        "upper": field(upper),
        "penalty": float(penalty),
    }


def _problem(features: Features, constant: float, spins: np.ndarray, upper: np.ndarray) -> dict[str, Any]:
    """Return JSON fields of the training data: labels, upper bounds of the duals, and features."""
    return {"labels": field(spins.T > 0, np.int8), "upper": field(upper)} | _rows(features, constant)


def _rows(features: Features, constant: float) -> dict[str, Any]:
    """Return JSON fields of the features in CSR form, with the constant as the last column."""
    count, width = features.shape  # pyright: ignore[reportGeneralTypeIssues]
    if isinstance(features, np.ndarray):
        rows, columns = np.indices(features.shape).reshape(2, -1)
        values = features.ravel()
    else:
        rows, columns = np.arange(count).repeat(np.diff(features.indptr)), features.indices
        values = features.data
    rows = np.concatenate([rows, np.arange(count)])
    columns = np.concatenate([columns, np.full(count, width)])
    values = np.concatenate([values, np.full(count, constant)])
    order = np.argsort(rows, kind="stable")
    starts = np.concatenate([[0], np.bincount(rows, minlength=count).cumsum()])
    return {
        "starts": field(starts, np.int64),
        "columns": field(columns[order], np.int64),
        "values": field(values[order]),
        "features": width + 1,
    }
