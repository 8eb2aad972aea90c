"""Three formulations of max-margin Markov networks for a convex solver (cvxpy, Clarabel): tiny problems.

max_margin_markov_networks_survey_2003, Equations 37, 38 and 41, whose optima are the same. All take the
inputs φ(x_t) themselves; a chain's joint features are Σ_t e_{y_t} ⊗ φ(x_t) and its transitions' counts, these
divided by √η for the transitions' penalty η.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np

__all__ = ["TinyChains", "enumerated_dual", "factored_dual", "primal"]

SETTINGS = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


@dataclass(frozen=True)
class TinyChains:
    """Chains whose labellings can be enumerated.

    Args:
        inputs: one (length, features) array for each chain, any constant feature included.
        labels: one (length,) array of states each.
        num_states: S.
        upper: (chains,), the losses' weights: C/n of the survey.
        coupling_penalty: η.
    """

    inputs: list[np.ndarray]
    labels: list[np.ndarray]
    num_states: int
    upper: np.ndarray
    coupling_penalty: float = 1.0

    def joint_features(self, chain: int, labelling: np.ndarray) -> np.ndarray:
        """F(x, y), flat."""
        unary = np.eye(self.num_states)[labelling].T @ self.inputs[chain]
        pairs = np.zeros((self.num_states, self.num_states))
        np.add.at(pairs, (labelling[:-1], labelling[1:]), 1 / np.sqrt(self.coupling_penalty))
        return np.concatenate([unary.ravel(), pairs.ravel()])

    def differences(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each chain ΔF of every labelling (labellings, features), and Δt (labellings,)."""
        for chain, truth in enumerate(self.labels):
            labellings = np.array(list(product(range(self.num_states), repeat=len(truth))))
            own = self.joint_features(chain, truth)
            yield (
                np.array([own - self.joint_features(chain, each) for each in labellings]),
                (labellings != truth).sum(1).astype(float),
            )


def primal(chains: TinyChains) -> float:
    """(37): min ½‖w‖² + Σ_x C_x ξ_x, ξ_x ≥ Δt_x(y) − ⟨w, ΔF_x(y)⟩ for every y."""
    every = list(chains.differences())
    weights, slack = cp.Variable(every[0][0].shape[1]), cp.Variable(len(every))
    constraints = [slack[x] >= loss - psi @ weights for x, (psi, loss) in enumerate(every)]
    return _solved(cp.Minimize(0.5 * cp.sum_squares(weights) + chains.upper @ slack), constraints)


def enumerated_dual(chains: TinyChains) -> float:
    """(38): max Σ α_x(y) Δt_x(y) − ½‖Σ α_x(y) ΔF_x(y)‖², every chain's α ≥ 0 summing to C_x."""
    gain, weights, constraints = 0, 0, []
    for upper, (psi, loss) in zip(chains.upper, chains.differences(), strict=True):
        alpha = cp.Variable(len(loss), nonneg=True)
        constraints.append(cp.sum(alpha) == upper)
        gain, weights = gain + loss @ alpha, weights + psi.T @ alpha
    return _solved(cp.Maximize(gain - 0.5 * cp.sum_squares(weights)), constraints)


def factored_dual(chains: TinyChains) -> float:
    """(41): the same in node and edge marginals, which agree at both ends of every edge.

    As printed, edges agree with the node at one end alone: a relaxation with another value.
    """
    states, scale = chains.num_states, 1 / np.sqrt(chains.coupling_penalty)
    gain, unary, pairs, constraints = 0, 0, 0, []
    for inputs, truth, upper in zip(chains.inputs, chains.labels, chains.upper, strict=True):
        nodes = cp.Variable((len(truth), states), nonneg=True)
        constraints.append(cp.sum(nodes, axis=1) == upper)
        own = np.eye(states)[truth]
        gain = gain + cp.sum(cp.multiply(1 - own, nodes))
        unary = unary + (upper * own - nodes).T @ inputs
        for t in range(len(truth) - 1):
            edge = cp.Variable((states, states), nonneg=True)
            constraints += [cp.sum(edge, axis=1) == nodes[t], cp.sum(edge, axis=0) == nodes[t + 1]]
            pairs = pairs + scale * (upper * np.outer(own[t], own[t + 1]) - edge)
    square = cp.sum_squares(unary) + cp.sum_squares(pairs)
    return _solved(cp.Maximize(gain - 0.5 * square), constraints)


def _solved(objective: cp.Minimize | cp.Maximize, constraints: list) -> float:
    programme = cp.Problem(objective, constraints)
    programme.solve(solver=cp.CLARABEL, **SETTINGS)
    value: Any = programme.value
    if programme.status != cp.OPTIMAL:
        raise RuntimeError(f"Clarabel: expected an optimum, got {programme.status}")
    return float(value)
