"""Three formulations of max-margin Markov networks with the same optimum.

Source: max_margin_markov_networks_survey_2003, Equations 37, 38 and 41. The joint features F of a chain are
Σ_t e_{y_t} ⊗ φ(x_t), and the counts of transitions divided by √η, where η is the penalty on their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lmbm_torch.extras import naming_extras
from lmbm_torch.references.programmes import solve

with naming_extras():
    import cvxpy as cp
    import numpy as np

__all__ = ["TinyChains", "chain_dual", "chain_primal", "factored_chain_dual"]


@dataclass(frozen=True)
class TinyChains:
    """Training chains so short that labellings can be enumerated; length 1 gives the multi-class SVM.

    Args:
        inputs: an array (length, features) for each chain; a constant feature must be among the features.
        labels: an array (length,) of states for each chain.
        num_states: the number of states.
        upper: (chains,), the weights C_x of the losses; C/n in the survey.
        coupling_penalty: η, the penalty on weights of transitions.
        free_bias: whether each state has a bias without a penalty.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import TinyChains, chain_dual, chain_primal, factored_chain_dual
        >>> random = np.random.default_rng(0)
        >>> chains = TinyChains([random.normal(size=(3, 2))], [np.array([0, 1, 1])], 2, np.ones(1))
        >>> values = [each(chains) for each in (chain_primal, chain_dual, factored_chain_dual)]
        >>> bool(np.ptp(values) < 1e-6)
        True
    """

    inputs: list[np.ndarray]
    labels: list[np.ndarray]
    num_states: int
    upper: np.ndarray
    coupling_penalty: float = 1.0
    free_bias: bool = False

    def joint_features(self, chain: int, labelling: np.ndarray) -> np.ndarray:
        """Return the joint features F(x, y) of a chain and a labelling as a vector."""
        unary = np.eye(self.num_states)[labelling].T @ self.inputs[chain]
        pairs = np.zeros((self.num_states, self.num_states))
        np.add.at(pairs, (labelling[:-1], labelling[1:]), 1 / np.sqrt(self.coupling_penalty))
        return np.concatenate([unary.ravel(), pairs.ravel()])

    def differences(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for each chain, over all labellings y: features of truth − y, losses, counts of truth − y."""
        for chain, truth in enumerate(self.labels):
            labellings = np.array(list(product(range(self.num_states), repeat=len(truth))))
            own, counts = self.joint_features(chain, truth), np.eye(self.num_states)
            yield (
                np.array([own - self.joint_features(chain, each) for each in labellings]),
                (labellings != truth).sum(1).astype(float),
                counts[truth].sum(0) - counts[labellings].sum(1),
            )


def chain_primal(chains: TinyChains) -> float:
    """Return min ½‖w‖² + Σ_x C_x ξ_x with ξ_x ≥ Δt_x(y) − ⟨w, ΔF_x(y)⟩ for every y (Equation 37).

    Δt_x(y) is the Hamming loss of labelling y, ΔF_x(y) the joint features of the truth minus those of y.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import TinyChains, chain_primal
        >>> round(chain_primal(TinyChains([np.zeros((1, 1))], [np.array([0])], 2, np.ones(1))), 6)
        1.0
    """
    every = list(chains.differences())
    weights, slack = cp.Variable(every[0][0].shape[1]), cp.Variable(len(every))
    bias = cp.Variable(chains.num_states)
    constraints = [
        slack[x] >= loss - psi @ weights - counts @ bias for x, (psi, loss, counts) in enumerate(every)
    ]
    constraints.append((cp.sum(bias) if chains.free_bias else bias) == 0)
    return solve(cp.Minimize(0.5 * cp.sum_squares(weights) + chains.upper @ slack), constraints)


def chain_dual(chains: TinyChains) -> float:
    """Return the optimum of the dual (Equation 38) of :func:`chain_primal`, over α ≥ 0 with sums C_x.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import TinyChains, chain_dual
        >>> round(chain_dual(TinyChains([np.zeros((1, 1))], [np.array([0])], 2, np.ones(1))), 6)
        1.0
    """
    gain, weights, moved, constraints = 0, 0, 0, []
    for upper, (psi, loss, counts) in zip(chains.upper, chains.differences(), strict=True):
        alpha = cp.Variable(len(loss), nonneg=True)
        constraints.append(cp.sum(alpha) == upper)
        gain, weights, moved = gain + loss @ alpha, weights + psi.T @ alpha, moved + counts.T @ alpha
    if chains.free_bias:
        constraints.append(moved == 0)
    return solve(cp.Maximize(gain - 0.5 * cp.sum_squares(weights)), constraints)


def factored_chain_dual(chains: TinyChains) -> float:
    """Return the optimum of the dual over marginals of nodes and edges (Equation 41), without free biases.

    The marginals of an edge agree with the marginals of both nodes. In the printed equation they agree with
    only one node, which is a relaxation with another optimum.

    Raises:
        RuntimeError: the solver has found no optimum.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.references import TinyChains, factored_chain_dual
        >>> round(factored_chain_dual(TinyChains([np.zeros((1, 1))], [np.array([0])], 2, np.ones(1))), 6)
        1.0
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
    return solve(cp.Maximize(gain - 0.5 * square), constraints)
