"""Every kernel without numba: its source, run by Python, finds what its machine code finds."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from interpreted import MODULES, RECORDS, without_numba
from strategies.chain import random_chain_energy
from strategies.directed import random_directed_energy, random_known
from strategies.factor import random_factor_energy
from strategies.label_problems import random_problems
from strategies.pairwise import random_pairwise_energy
from strategies.shared_problems import random_shared_problem
from strategies.structural import random_label_problem, random_words

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.graphs.arrays import example_of
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.kernels.dual.records import Box
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.search.records import Network
from lmbm_torch.solvers import smo
from lmbm_torch.solvers.chains import exponentiated_gradient as chains_by_gradient
from lmbm_torch.solvers.chains import multi_class
from lmbm_torch.solvers.chains import smo as chain_smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.machines import dual_coordinate as machines
from lmbm_torch.solvers.networks import dual_coordinate, exponentiated_gradient
from lmbm_torch.solvers.smo import JointProblem, MulticlassProblem
from lmbm_torch.solvers.structural import frank_wolfe

RANDOM = np.random.default_rng(0).normal(size=(40, 6))
LABELS = (RANDOM @ np.random.default_rng(1).normal(size=(6, 4))).argmax(1)
GRAM = 1 + RANDOM @ RANDOM.T


def updated(solver, problem, **settings):
    """The state after an update from the beginning."""
    return vars(solver.update(problem, solver.init(problem), **settings))


def of_chains():
    problem = ChainKernelProblem(GRAM, LABELS, np.array([0, 3, 10, 11, 20, 40]), 4, C=2.0)
    scores, transition = 3 * RANDOM[:, :4], RANDOM[:4, :4]
    found = [updated(solver, problem, num_iters=1) for solver in (chain_smo, chains_by_gradient)]
    forbidden = np.array([0, 0, 0, -1e30])
    for scale in (1.0, 1e3):
        errors, pairs = np.zeros_like(scores), np.zeros_like(transition)
        loss = kernels("dual.chains").loss_and_gradient(
            scores,
            scale * transition + forbidden * (scale > 1),
            problem.start,
            LABELS,
            np.ones(5),
            errors,
            pairs,
        )
        found.append((loss, errors, pairs))
    return found


def of_kernel_networks():
    joint, found = GRAM.astype(np.float32), []
    for C in (0.1, 50.0):
        spins = np.where(LABELS > 1, 1.0, -1.0)
        bound = C * spins
        box = Box(np.zeros(40), np.minimum(bound, 0), np.maximum(bound, 0), -spins, spins)
        kernels("dual.kernel_network").solve_label(joint, box, 1e-6, 10**4)
        found.append((box.coef @ (box.linear - box.gradient), box.gradient - (joint @ box.coef - spins)))
    kernels("dual.kernel_network").add_columns(joint, np.sign(RANDOM.T).astype(np.float32), RANDOM[0])
    return found, joint


def of_logistic_regression():
    targets = torch.eye(4, dtype=torch.float64)[torch.from_numpy(LABELS)]
    upper, gram = torch.full((40,), 0.1, dtype=torch.float64), torch.from_numpy(GRAM)
    features = torch.from_numpy(np.random.default_rng(5).normal(size=(40, 4, 5)))
    joint = torch.einsum("iyf,jzf->iyjz", features, features)
    return [
        updated(smo, MulticlassProblem(PrecomputedGram(gram), targets, upper), num_iters=2),
        updated(smo, JointProblem(joint, targets, upper), num_iters=1),
    ]


def of_machines():
    problems = [random_shared_problem(seed, csr=bool(seed)) for seed in range(2)]
    return [updated(machines, problem, seed=1) for problem in problems]


def of_classes():
    problem = ChainKernelProblem(GRAM, LABELS, np.arange(41), 4, C=5.0)
    return updated(multi_class, problem, num_iters=5, tol=1e-9)


def of_networks():
    forms = {}, {"csr": True, "num_cliques": 4, "num_labels": 5}, {"missing": 0.2, "C": 30.0}
    problems = [random_problems(seed, **form) for seed, form in enumerate(forms)]
    return [
        updated(solver, problem, tol=1e-6, num_iters=2)
        for problem in problems
        for solver in (dual_coordinate, exponentiated_gradient)
    ]


def of_structures():
    problems = random_label_problem(1), random_label_problem(2, csr=True), random_words(1)[0]
    return [updated(frank_wolfe, problem) for problem in problems]


def of_chain_programming():
    energy, kernel = (
        random_chain_energy(0, max_length=6, num_states=3, batch_size=4),
        kernels("search.chains"),
    )
    unary, lengths = energy.unary.numpy(), energy.lengths.numpy()
    labels, first = np.zeros(unary[..., 0].size, np.int64), np.arange(4) * unary.shape[1]
    tables = energy.transition.reshape(-1, 3, 3).numpy()
    possible = kernel.best_paths(unary.reshape(-1, 3), first, lengths, tables, (0, 0), labels)
    found = []
    for steps in (unary.shape[1] - 1, 1):
        nodes, edges = np.zeros_like(unary), np.zeros((4, steps, 3, 3))
        total = kernel.marginals(unary, lengths, np.exp(tables), (0, 0), nodes, edges)
        found.append((total, nodes, edges))
    return possible, labels, found


def decoded(energy, module, **options):
    found = [getattr(module, name)(energy, **options) for name in ("decode", "decode_hinge")]
    return [(each.labels, each.objective, each.bound, each.nodes) for each in found]


def of_belief_networks():
    energy = random_directed_energy(0, 7, 4, num_cliques=3)
    few = random_directed_energy(1, 140, 2, coupling=0.01)
    few = replace(
        few, parents=few.parents * torch.from_numpy(np.random.default_rng(4).random((140, 140)) < 0.05)
    )
    known = random_known(0, energy, share=0.2)
    found = decoded(energy, branch_and_bound, known=known, top_k=2)
    return found, decoded(few, branch_and_bound, node_limit=150)


def of_machines_searched():
    energy = random_pairwise_energy(0, 8, 4, per_example=True)
    found = [decoded(energy, undirected_branch_and_bound, node_limit=limit) for limit in (5, 10**6)]
    return found, undirected_branch_and_bound.decode_by_flips(energy).labels


def of_persistent_labels():
    couplings = np.triu(RANDOM[:6], 1) + np.triu(RANDOM[:6], 1).T
    kernel = kernels("search.roof_duality")
    messages = kernel.messages(RANDOM[7], couplings, np.zeros(6), 1e-12)
    return messages, kernel.persistent(RANDOM[7], couplings, messages, 1e-12)


def of_prefixes():
    known = np.where(np.abs(RANDOM[:3]) > 1, RANDOM[:3] > 0, -1)
    return kernels("search.directed_sums").marginals(RANDOM[:3], np.tril(RANDOM[3:9], -1), known)


def of_enumeration():
    unary = np.hstack([RANDOM[:5], RANDOM[5:10, :4]])
    pairs = np.random.default_rng(2).normal(size=(10, 10))
    allowed = np.random.default_rng(3).random(2**10) < 0.3
    numbers = kernels("search.enumeration").best_numbers
    return [numbers(unary, pairs + pairs.T, each) for each in (None, allowed)]


def of_graphs():
    one = example_of(random_factor_energy(1, batch=1, num_states=(2, 3, 2, 3)))
    kernel = kernels("search.factor_graphs")
    graph, unary, entries = one.graph, one.unary.copy(), one.entries.copy()
    order, bounds, labels = np.arange(len(graph.states)), np.empty(2), np.zeros(len(graph.states), np.int64)
    made = kernel.ascend(graph, unary, entries, order, order, 6, 1e-9, bounds)
    kernel.rounded(graph, unary, entries, order, labels)
    kernel.improved(graph, one.unary, one.entries, labels)
    found = [made, bounds[1], labels, unary, entries, kernel.score_of(graph, unary, entries, labels)]
    widths = np.diff(graph.slot)
    for schedule in range(3):
        for is_max in (False, True):
            messages = np.repeat(1.0 / widths, widths)
            sums, belief = np.empty_like(messages), np.empty_like(one.unary)
            state = graph, one.unary, np.exp(one.entries), messages, sums, belief
            found.append(kernel.propagate(*state, schedule, is_max, 0.1, 1e-9, 5))
            found.append((kernel.bethe(*state), messages, belief))
    messages = np.repeat(1.0 / widths, widths)
    sums, belief = np.empty_like(messages), np.empty_like(one.unary)
    state = graph, one.unary, np.exp(one.entries), messages, sums, belief
    found.append((kernel.double_loop(*state, 1e-9, 5), messages, belief))
    belief = np.repeat(1.0 / graph.states, graph.states)
    return found, kernel.mean_field(graph, one.unary, one.entries, belief, 5, 1e-9), belief


def of_likely_labellings():
    kernel, order = kernels("search.likely"), np.arange(15)
    unary, parents = RANDOM[:30].reshape(-1, 15)[:3], np.tril(RANDOM[:38].ravel()[:225].reshape(15, 15), -1)
    cliques = np.r_[np.zeros(12, np.int64), 1, 1, 1, 1], np.array([[0, 5]]), np.array([[0.7]])
    network = kernel.Network(unary, parents[None] / 2, *cliques)
    known = np.where(np.abs(unary) > 2, unary > 0, -1)
    found = kernel.labellings(network, known, kernel.Limits(0.05, 200, 1.0, 1.0))
    found += kernel.above(network, known, np.full(3, -4.0), 100)
    labels = np.zeros((len(found[0].bits), 15), np.int64)
    kernel.read_labels(found[0].bits, order, labels)
    return found, labels


def of_samples():
    step = np.triu(RANDOM[:6], 1)
    parent, child = step.nonzero()
    start = np.searchsorted(parent, np.arange(7))
    network = Network(RANDOM[6:10], start, child, step[parent, child])
    kernel, noise = kernels("search.samples"), np.random.default_rng(1).logistic(size=(50, 6))
    labels = (RANDOM[:20].reshape(2, 10, 6) > 0).astype(np.int64)
    masses = kernel.size_masses(labels, np.full((2, 10), 0.1))
    return kernel.mean_chances(network, noise), kernel.labellings_of_most_f1(network, noise), masses


def of_rules():
    rules = Constraints.of(["a -> b", "not (c and d)", "a or e or f"], list("abcdef"))
    return [
        decoded(energy, module, constraints=rules, node_limit=10**4)
        for energy, module in (
            (random_directed_energy(0, 6, 5), branch_and_bound),
            (random_pairwise_energy(0, 6, 5), undirected_branch_and_bound),
        )
    ]


CASES = {
    "dual.chains": of_chains,
    "dual.kernel_network": of_kernel_networks,
    "dual.logistic": of_logistic_regression,
    "dual.machine": of_machines,
    "dual.multi_class": of_classes,
    "dual.network": of_networks,
    "dual.structural": of_structures,
    "search.chains": of_chain_programming,
    "search.directed": of_belief_networks,
    "search.directed_sums": of_prefixes,
    "search.enumeration": of_enumeration,
    "search.factor_graphs": of_graphs,
    "search.likely": of_likely_labellings,
    "search.roof_duality": of_persistent_labels,
    "search.samples": of_samples,
    "search.under_rules": of_rules,
    "search.undirected": of_machines_searched,
}
# Called by the kernels above alone.
PARTS = {"dual.random", "dual.rows", "search.few_parents", "search.flips", "search.losses"}
# Its bits of floating-point numbers are numba's own; elsewhere the same sums are made in torch.
COMPILED_ALONE = {"search.one_side"}
# Operators over kernels, and the kernel in CUDA.
OF_DEVICES = {"search.directed_cuda", "search.operator"}


def numbers(found) -> list[np.ndarray]:
    """All numbers of a nested result."""
    if isinstance(found, torch.Tensor):
        return [found.detach().numpy()]
    if isinstance(found, (np.ndarray, np.generic, float, int)):
        return [np.asarray(found)]
    if hasattr(found, "__dict__"):
        found = vars(found)
    entries = found.values() if isinstance(found, dict) else found
    return [number for entry in entries for number in numbers(entry)] if entries is not None else []


def test_every_kernel_is_tried():
    assert sorted(set(CASES) | PARTS | COMPILED_ALONE | RECORDS | OF_DEVICES) == MODULES


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_find_what_compiled_ones_find(name, monkeypatch):
    # After a step several pairs are as good, and rounding chooses the next.
    monkeypatch.setattr(chain_smo, "STEPS_PER_VISIT", 1)
    monkeypatch.setattr(smo, "PAIR_STEPS", 1)
    expected = numbers(CASES[name]())
    with without_numba(), warnings.catch_warnings():
        # Of numba alone, and of nothing that is computed.
        warnings.filterwarnings("ignore", "numba cannot be used")
        assert not hasattr(kernels(name), "numba")
        found = numbers(CASES[name]())
    assert len(found) == len(expected) > 0
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-7, atol=1e-9)
