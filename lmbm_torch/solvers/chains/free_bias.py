"""The multi-class SVM with biases that are not penalised, as in libsvm, to a certified gap.

With free biases the dual has the constraint Σ_l C_l (truth_l − μ_l) = 0. The method of multipliers penalises
the sum, and changes the biases by κ times the sum (Rockafellar 1976): each step is an SVM whose biases are
pulled towards the last biases, solved as in :mod:`~lmbm_torch.solvers.chains.multi_class` with κ added to the
kernel. For quadratic programmes finitely many steps are enough. For a certificate, the duals are changed
until the sum is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.chains import multi_class
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.multi_class import PASSES_AT_ONCE
from lmbm_torch.solvers.chains.multi_class import limits as limits
from lmbm_torch.solvers.chains.smo import FactoredState

# Constant κ added to the kernel, as a multiple of the mean of k(x, x). On 600 to 1,800 of scikit-learn's
# digits, a ten times larger κ takes two to twelve times as many passes.
PULL = 1.0


@dataclass(frozen=True, eq=False)
class FreeBiasState(FactoredState):
    """A state with feasible marginals, and with the biases.

    Args:
        bias: the biases, (states,), whose sum is 0.
    """

    bias: np.ndarray


def init(problem: ChainKernelProblem) -> FreeBiasState:
    """Return the state at zero weights and biases: the true labels have probability 1.

    Raises:
        ValueError: a chain has several positions.
    """
    return FreeBiasState(**vars(multi_class.init(problem)), bias=np.zeros(problem.num_states))


def update(
    problem: ChainKernelProblem,
    state: FreeBiasState,
    *,
    num_iters: int = PASSES_AT_ONCE,
    tol: float = 1e-9,
    seed: int = 0,
) -> FreeBiasState:
    """Make up to ``num_iters`` passes with biases pulled towards the state's biases, and certify the result.

    Args:
        num_iters, tol, seed: see :func:`multi_class.update <lmbm_torch.solvers.chains.multi_class.update>`.

    Raises:
        ValueError: the state does not fit the problem; ``num_iters`` is below one; ``tol`` is not above zero.
    """
    check_count("num_iters", num_iters)
    check_positive("tol", tol)
    check_shape("state.nodes", state.nodes, len(problem.upper), problem.num_states)
    pull = PULL * max(float(problem.gram.diagonal().mean()), 1e-12)
    drawn = int(np.random.default_rng((seed, state.num_iters)).integers(2**31))
    nodes, penalised = state.nodes.copy(), replace(problem, gram=problem.gram + pull)
    backend = kernels("dual.multi_class")
    # The solver only adds changes to the scores, so biases added here stay part of the scores.
    scores = np.ascontiguousarray((state.scores + state.bias).T)
    made = backend.ascend(penalised, nodes, scores, tol / 2, num_iters, drawn)
    bias = state.bias + pull * problem.coef(nodes).sum(0)
    return _certified(problem, nodes, bias, state.num_iters + min(max(made, 1), num_iters))


def _certified(
    problem: ChainKernelProblem, nodes: np.ndarray, bias: np.ndarray, num_iters: int
) -> FreeBiasState:
    """Make the marginals feasible; return the state with primal and dual values computed anew."""
    wrong = 1 - problem.truth
    fields = problem.gram @ problem.coef(nodes) + bias + wrong
    nodes = _balanced(problem, nodes, fields)
    certificate = problem.certify(nodes, np.zeros((problem.num_states, problem.num_states)))
    fields = certificate.scores + bias + wrong
    hinge = fields.max(1) - fields[np.arange(len(fields)), problem.labels]
    gain = problem.upper @ (nodes * wrong).sum(1)
    # The primal value is ½‖w‖² plus the hinges, and ½‖w‖² is the gain minus the dual value.
    primal = gain - certificate.dual + problem.upper @ hinge
    parts = {**vars(certificate), "primal": float(primal)}
    pairs = sparse.csr_array((0, problem.num_states**2))
    return FreeBiasState(**parts, num_iters=num_iters, nodes=nodes, pairs=pairs, bias=bias)


def _balanced(problem: ChainKernelProblem, nodes: np.ndarray, fields: np.ndarray) -> np.ndarray:
    """Move probability between classes, where the dual value falls least, until the constraint holds."""
    nodes, left = nodes.copy(), problem.coef(nodes).sum(0)
    for _ in range(problem.num_states - 1):
        source, target = int(left.argmin()), int(left.argmax())
        amount = min(-left[source], left[target])
        order = np.argsort(fields[:, source] - fields[:, target], kind="stable")
        mass = (problem.upper * nodes[:, source])[order]
        taken = np.diff(np.minimum(mass.cumsum(), amount), prepend=0.0)
        moved = np.zeros(len(nodes))
        moved[order] = np.divide(taken, problem.upper[order], out=np.zeros_like(taken), where=taken > 0)
        nodes[:, source] -= moved
        nodes[:, target] += moved
        left[source] += amount
        left[target] -= amount
    return nodes.clip(0)
