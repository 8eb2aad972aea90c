"""Calls with small problems that compile all kernels; a new model family needs a row in ``FIRST_CALLS``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse

from lmbm_torch import estimators, inference
from lmbm_torch.constraints import Constraints, exactly
from lmbm_torch.energies import BipartiteEnergy, ChainEnergy, DirectedEnergy, FactorEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import belief_propagation, dual_ascent
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import branch_and_bound, most_probable, undirected_branch_and_bound
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.kernels.jit import num_compiled
from lmbm_torch.kernels.search import few_parents
from lmbm_torch.solvers.chains import exponentiated_gradient
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.linear import LikelihoodProblem

# Number of labels in the calls; with fewer labels, labellings would be enumerated instead of searched.
LABELS = 6


def call(name: str) -> int:
    """Run a call of ``FIRST_CALLS``; return the number of functions that were compiled for the call."""
    # Hide messages about long calls.
    logging.getLogger("lmbm_torch").setLevel(logging.ERROR)
    before = num_compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FIRST_CALLS[name]()
    return num_compiled() - before


def instances(form: str, rows: int = 40) -> tuple[Any, np.ndarray]:
    """Return labels, and features in a form of ``FORMS``, so sparse that CSR features stay CSR."""
    random = np.random.default_rng(0)
    X = random.standard_normal((rows, 8)) * (random.random((rows, 8)) < 0.25)
    return FORMS[form](X), (X @ random.standard_normal((8, LABELS)) > 0).astype(int)


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": np.asarray,
    "sparse": sparse.csr_array,
    "single": lambda X: X.astype(np.float32),
    "sparse single": lambda X: sparse.csr_array(X.astype(np.float32)),
}


def fit(estimator: Any, form: str, rows: int = 40) -> None:
    """Train an estimator on small data, and predict."""
    X, Y = instances(form, rows)
    estimator.fit(X, Y)
    estimator.predict(X)
    estimator.predict(X[:1])
    if hasattr(estimator, "predict_proba"):
        estimator.predict_proba(X)


def fit_classes(estimator: Any) -> None:
    """Train an estimator of classes on small data, and predict."""
    X, Y = instances("dense")
    estimator.fit(X, Y[:, 0])
    estimator.predict(X)


def fit_chains(estimator: Any) -> None:
    """Train an estimator of chains on chains of length 2, and predict."""
    X, Y = instances("dense")
    sequences = [X[row : row + 2] for row in range(0, X.shape[0], 2)]
    estimator.fit(sequences, [Y[row : row + 2, 0] for row in range(0, len(Y), 2)])
    estimator.predict(sequences)


def smooth_chains() -> None:
    """Compute gradients of chains with similar, and of chains with very different transition weights."""
    X, Y = instances("dense")
    problem = LikelihoodProblem(X, Y[:, 0], np.arange(0, len(X) + 1, 2), 2)
    for scale in (1.0, 1e3):
        problem.value_and_gradient(scale * np.arange(problem.num_weights))


def climb_chains() -> None:
    """Run the exponentiated-gradient solver on the chains of :func:`fit_chains`."""
    X, Y = instances("dense")
    problem = ChainKernelProblem(1 + X @ X.T, Y[:, 0], np.arange(0, len(X) + 1, 2), 2)
    exponentiated_gradient.update(problem, exponentiated_gradient.init(problem), num_iters=2)


def search(dtype: torch.dtype) -> None:
    """Decode Boltzmann machines and belief networks: with shared or own couplings, and under rules."""
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(few_parents.LABELS, few_parents.LABELS, generator=generator, dtype=dtype, device="cpu")
    banded = DirectedEnergy(many[:3], many.tril(-1).triu(-3), torch.arange(len(many), device="cpu"))
    for routine in (branch_and_bound.decode, branch_and_bound.decode_hinge):
        routine(banded, node_limit=1000)
    inference.decode_expected([banded], "f1", max_labellings=1, num_samples=2)
    ancestral.marginals(banded, 2)
    few = banded.select(slice(0, 1))
    inference.decode_expected([few], "f1", max_labellings=10, num_samples=2)
    most_probable.labellings(few, max_labellings=10)
    chain_dp.decode(ChainEnergy(many[None, :3, :3], many[:3, :3]))
    eleven = torch.arange(11, device="cpu")
    exact.marginals(DirectedEnergy(many[:3, :11], many[:11, :11].tril(-1), eleven))
    for labels in (LABELS, 3 * LABELS):
        unary = torch.randn(3, labels, generator=generator, dtype=torch.float64, device="cpu")
        coupling = (
            torch.randn(labels, labels, generator=generator, dtype=torch.float64, device="cpu") / labels
        )
        pairwise = (coupling + coupling.mT).fill_diagonal_(0)
        machine = PairwiseEnergy(unary.to(dtype), pairwise.to(dtype))
        network = DirectedEnergy(
            unary.to(dtype), coupling.tril(-1).to(dtype), torch.arange(labels, device="cpu")
        )
        names = [str(label) for label in range(labels)]
        rules = Constraints.of(exactly(1, names), names)
        for energy in (machine, network):
            inference.decode(energy, constraints=rules)
            inference.decode_hinge(energy, constraints=rules)
        for rows in (slice(0, 3), slice(0, 1)):
            for routine in (branch_and_bound.decode, branch_and_bound.decode_hinge):
                routine(network.select(rows))
            for module in (undirected_branch_and_bound, exact):
                module.decode(machine.select(rows))
                module.decode_hinge(machine.select(rows))
            semidefinite.decode(machine.select(rows))


def propagate(dtype: torch.dtype) -> None:
    """Run both kernels of belief propagation on restricted Boltzmann machines."""
    generator = torch.Generator().manual_seed(0)
    for batch, visible, hidden in ((40, 6, 4), (2, 70, 40)):
        shapes = ((batch, visible), (batch, hidden), (visible, hidden))
        energy = BipartiteEnergy(
            *(torch.randn(shape, generator=generator, device="cpu").to(dtype) for shape in shapes)
        )
        for routine in (matrix_bp.marginals, matrix_bp.max_marginals, matrix_bp.marginal_map):
            routine(energy, num_iters=2)
    few = energy.select(slice(0, 2))
    exact.log_partition(BipartiteEnergy(few.visible[:, :6], few.hidden[:, :4], few.coupling[:6, :4]))
    # Compile also the variant for numbers of units that fill whole vector registers.
    exact.marginals(BipartiteEnergy(few.hidden[:, :6], few.visible, few.coupling.mT[:6]))


def sweep_graphs() -> None:
    """Run all algorithms for factor graphs: bounds, labellings, messages and mean field."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([[0, 1], [1, 2], [2, 0]], device="cpu")
    unary = torch.randn(1, 3, 3, generator=generator, device="cpu", dtype=torch.float64)
    energy = FactorEnergy.from_edges(unary, edges, torch.eye(3, dtype=torch.float64, device="cpu"))
    dual_ascent.branch_and_bound(energy)
    for routine in (belief_propagation.marginals, belief_propagation.decode, belief_propagation.mean_field):
        routine(energy)


ESTIMATORS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "networks": (estimators.LMSBNClassifier(random_state=0), tuple(FORMS)),
    "networks by gradients": (
        estimators.LMSBNClassifier(solver="exponentiated_gradient", random_state=0),
        tuple(FORMS),
    ),
    "kernel networks": (estimators.LMSBNClassifier(kernel="rbf", random_state=0), ("dense",)),
    "Boltzmann machines": (estimators.LMBMClassifier(random_state=0), tuple(FORMS)),
    "Boltzmann machines by coordinates": (
        estimators.LMBMClassifier(solver="dual_coordinate", random_state=0),
        tuple(FORMS),
    ),
    "structural SVMs": (estimators.StructuralSVMClassifier(random_state=0), tuple(FORMS)),
    "conditional RBMs": (estimators.ConditionalRBMClassifier(max_iter=2, random_state=0), ("dense",)),
}
CLASSES = {
    "kernel logistic regressions": estimators.KernelLogisticRegression(),
    "multi-class SVMs": estimators.MultiClassSVM(random_state=0),
}
CHAINS = {
    "chain CRFs": estimators.ChainCRF(max_iter=5),
    "chain SVMs": estimators.ChainSVM(max_iter=5),
    "chain SVMs with kernels": estimators.ChainSVM(kernel="rbf", max_iter=5),
}

FIRST_CALLS: dict[str, Callable[[], None]] = {
    **{
        f"{name}, {form}": partial(fit, estimator, form)
        for name, (estimator, forms) in ESTIMATORS.items()
        for form in forms
    },
    # With this many instances, the solver updates all labels together.
    **{
        f"networks of many instances, {form}": partial(
            fit, estimators.LMSBNClassifier(random_state=0), form, 30_000
        )
        for form in FORMS
    },
    **{name: partial(fit_classes, estimator) for name, estimator in CLASSES.items()},
    **{name: partial(fit_chains, estimator) for name, estimator in CHAINS.items()},
    "chains by gradients": climb_chains,
    "graphs of many states": sweep_graphs,
    "chains by L-BFGS": smooth_chains,
    **{f"searches, {dtype}": partial(search, dtype) for dtype in (torch.float64, torch.float32)},
    **{f"belief propagation, {dtype}": partial(propagate, dtype) for dtype in (torch.float32, torch.float64)},
}
"""Calls by name, in any order: compiled code is kept for all processes."""
