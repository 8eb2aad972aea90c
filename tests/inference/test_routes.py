"""The chosen routine has the answer of enumeration, for every kind of energy and around each cut-off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies.bipartite import random_bipartite_energy
from strategies.chain import random_chain_energy
from strategies.directed import random_directed_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy
from strategies.tree import random_tree_energy

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import BipartiteEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.routes import answers, table
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.inference.trees import chain_dp, tree_dp

LABELS = 6


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


STEPS = drawn(LABELS, LABELS).triu(1).tril(1)
MACHINES = {
    "pairwise": random_pairwise_energy(0, LABELS),
    "coupled by example": random_pairwise_energy(1, LABELS, per_example=True),
    "path": PairwiseEnergy(drawn(3, LABELS), STEPS + STEPS.mT),
    "pairs as cliques": CliqueEnergy.from_pairwise(random_pairwise_energy(3, LABELS)),
    "cliques": random_clique_energy(4, LABELS).add_unary(drawn(3, LABELS)),
    "sparse cliques": CliqueEnergy(((0, 1, 2), (2, 3), (3, 4, 5)), drawn(3, 3)).add_unary(drawn(3, LABELS)),
}
WITH_MARGINS = {"directed": random_directed_energy(0, LABELS), **MACHINES}
BIPARTITE = random_bipartite_energy(0, LABELS, 3)
BINARY = {**WITH_MARGINS, "bipartite": BIPARTITE}
CHAIN, TREE = random_chain_energy(0), random_tree_energy(0)

COUNTS = ("kernel", "enumeration", "hinge", "narrow", "hidden", "marginals", "elimination")
# Up to how many labels: all by enumeration, and each other routine in turn.
SIZES = {
    "enumeration": {},
    "kernel": {"kernel": LABELS, "enumeration": 1, "hinge": 1},
    "search": {"kernel": 1, "enumeration": 1, "hinge": 1, "narrow": LABELS},
    "beyond": dict.fromkeys(COUNTS, 1),
    "without a junction tree": dict.fromkeys((*COUNTS, "treewidth"), 0),
}


@pytest.fixture
def cutoffs(monkeypatch):
    """Set the cut-offs, by name."""

    def set_all(**sizes):
        for module in (table, answers):
            monkeypatch.setattr(module, "LIMITS", replace(table.LIMITS, **sizes))

    return set_all


def known_of(energy):
    """The second label known to be 1 in each example but the first, and the third to be 0."""
    visible = energy.num_visible if isinstance(energy, BipartiteEnergy) else energy.num_labels
    known = torch.full((energy.batch_size, visible), torch.nan, dtype=energy.dtype)
    known[1:, 1], known[:, 2] = 1, 0
    return known


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WITH_MARGINS)
def test_the_least_hinge_loss_is_found(kind, size, cutoffs):
    cutoffs(**SIZES[size])
    energy = WITH_MARGINS[kind]
    for known in (None, known_of(energy)):
        found = inference.decode_hinge(energy, 0.7, known=known)
        best = exact.decode_hinge(energy, 0.7, known=known)
        torch.testing.assert_close(found.objective, best.objective)
        # Several labellings may lose nothing.
        loses = best.objective > 0
        assert torch.equal(found.labels[loses], best.labels[loses])
        assert found.status.exact.all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WITH_MARGINS)
def test_the_most_probable_labelling_is_found(kind, size, cutoffs):
    cutoffs(**SIZES[size])
    energy = WITH_MARGINS[kind]
    for known in (None, known_of(energy)):
        found, best = inference.decode(energy, known=known), exact.decode(energy, known=known)
        torch.testing.assert_close(found.objective, best.objective)
        assert torch.equal(found.labels, best.labels)
        assert found.status.exact.all()


@pytest.mark.parametrize("size", SIZES)
def test_hidden_units_are_summed_out(size, cutoffs):
    cutoffs(**SIZES[size])
    for known in (None, known_of(BIPARTITE)):
        found, best = inference.decode(BIPARTITE, known=known), exact.marginal_map(BIPARTITE, known=known)
        torch.testing.assert_close(found.objective, best.objective)
        assert torch.equal(found.labels, best.labels)
        assert (found.bound >= best.objective - 1e-9).all()


def test_each_cutoff_changes_the_routine(cutoffs):
    shared, own, path = MACHINES["pairwise"], MACHINES["coupled by example"], MACHINES["path"]
    assert inference.decode(shared).nodes is None
    assert inference.decode_hinge(shared).nodes is None
    cutoffs(kernel=LABELS, enumeration=LABELS - 1, hinge=LABELS - 1)
    # The kernel takes shared couplings, and scores, with nothing known.
    assert inference.decode(shared).nodes is None
    assert inference.decode(own).nodes is not None
    assert inference.decode_hinge(shared).nodes is not None
    one_known = torch.full_like(shared.unary, torch.nan)
    assert inference.decode(shared, known=one_known).nodes is not None
    one_known[:, 0] = 1
    assert inference.decode(shared, known=one_known).nodes is None
    cutoffs(kernel=LABELS - 1)
    assert inference.decode(shared).nodes is not None
    cutoffs(narrow=LABELS - 1)
    assert inference.decode(path).nodes is None, "its junction tree is narrow"
    cutoffs(treewidth=0)
    assert inference.decode(path).nodes is not None


def test_narrow_graphs_are_eliminated_beyond_their_own_cutoff(cutoffs):
    cutoffs(elimination=LABELS)
    assert inference.marginals(MACHINES["path"]).method == "exact, by enumeration"
    cutoffs(elimination=LABELS - 1)
    assert inference.marginals(MACHINES["path"]).method == "exact, by a junction tree"
    cutoffs(treewidth=0)
    assert inference.marginals(MACHINES["path"]).method == "exact, by enumeration"


def test_without_numba_more_is_enumerated(cutoffs, monkeypatch):
    monkeypatch.setattr(table, "has_numba", lambda: False)
    cutoffs(hinge=1, without_numba=LABELS)
    assert inference.decode_hinge(MACHINES["pairwise"]).nodes is None
    cutoffs(without_numba=LABELS - 1)
    assert inference.decode_hinge(MACHINES["pairwise"]).nodes is not None


def test_many_labels_are_not_enumerated():
    energy = random_pairwise_energy(1, 23, batch_size=2, coupling=0.1, density=0.3)
    hinge, best = inference.decode_hinge(energy), inference.decode(energy)
    assert (hinge.status.exact & best.status.exact).all()
    assert hinge.nodes is not None
    assert best.nodes is not None
    torch.testing.assert_close(energy.score(best.labels), best.objective)
    assert (energy.score(best.labels) >= energy.score(hinge.labels)).all()


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("decode", [inference.decode_hinge, inference.decode])
def test_searches_end_at_their_limit_and_say_so(decode, top_k):
    limited = decode(random_directed_energy(0, 30, 2), top_k=top_k, node_limit=50)
    assert not (limited.status.exact | limited.status.converged).any()
    assert (limited.nodes < 200).all()
    few = WITH_MARGINS["directed"]
    assert decode(few, top_k=top_k, node_limit=None).status.exact.all()


def test_searches_for_machines_end_at_their_limit_too(cutoffs):
    cutoffs(hinge=4)
    energy = random_pairwise_energy(1, 12, batch_size=20, coupling=0.3)
    assert not inference.decode_hinge(energy, node_limit=1).status.converged.all()
    assert inference.decode_hinge(energy).status.exact.all()


def test_dense_machines_are_proven_where_nothing_limits_the_search(cutoffs):
    energy = random_pairwise_energy(2, 12, batch_size=6, coupling=0.3)
    cutoffs(enumeration=2, kernel=2, machine_nodes=1)
    assert (inference.decode(energy, node_limit=None).nodes > 1).any(), "by branch and bound alone"
    cutoffs(enumeration=2, kernel=2, dense=11, machine_nodes=1)
    known = known_of(energy)
    for given in (None, known):
        found, best = (
            inference.decode(energy, known=given, node_limit=None),
            exact.decode(energy, known=given),
        )
        assert found.status.exact.all()
        torch.testing.assert_close(found.objective, best.objective)
        assert torch.equal(found.labels, best.labels)
    assert not inference.decode(energy, node_limit=1).status.exact.all()


@pytest.mark.parametrize("kind", WITH_MARGINS)
def test_several_labellings_come_best_first(kind, cutoffs):
    cutoffs(**SIZES["without a junction tree"])
    energy = WITH_MARGINS[kind]
    known = known_of(energy)
    found = inference.decode(energy, known=known, top_k=3)
    torch.testing.assert_close(found.objective, exact.decode(energy, known=known, top_k=3).objective)
    hinge = inference.decode_hinge(energy, 0.5, known=known, top_k=3)
    best = exact.decode_hinge(energy, 0.5, known=known, top_k=3)
    torch.testing.assert_close(hinge.objective, best.objective)


def test_chains_and_trees_go_by_dynamic_programming():
    for energy, module in ((CHAIN, chain_dp), (TREE, tree_dp)):
        assert torch.equal(inference.decode(energy).labels, module.decode(energy).labels)
        found, expected = inference.marginals(energy), module.marginals(energy)
        assert torch.equal(found.states, expected.states)
        assert found.method == "exact, by dynamic programming"
        assert torch.equal(inference.log_partition(energy), module.log_partition(energy))
    several = inference.decode(CHAIN, top_k=2)
    assert torch.equal(several.labels, chain_dp.decode(CHAIN, top_k=2).labels)


def labels_of(found):
    return found.visible if hasattr(found, "visible") else found.labels


@pytest.mark.parametrize("kind", BINARY)
def test_marginals_of_few_labels_are_exact(kind):
    energy = BINARY[kind]
    for known in (None, known_of(energy)):
        found, expected = inference.marginals(energy, known=known), exact.marginals(energy, known=known)
        assert torch.equal(labels_of(found), labels_of(expected))
        assert torch.equal(found.log_partition, expected.log_partition)
        assert found.method == "exact, by enumeration"


MANY = {
    "directed": "means over 1000 samples",
    "pairwise": "approximate, by mean field",
    "path": "exact, by a junction tree",
    "sparse cliques": "exact, by a junction tree",
    "bipartite": "approximate, by belief propagation",
}


@pytest.mark.parametrize("kind", MANY)
def test_marginals_of_many_labels_say_how_they_were_found(kind, cutoffs):
    cutoffs(marginals=2, shared=2, elimination=2, treewidth=2)
    energy = BINARY[kind]
    found = inference.marginals(energy, generator=torch.Generator().manual_seed(0))
    expected = exact.marginals(energy)
    assert found.method == MANY[kind]
    is_exact = MANY[kind].startswith("exact")
    assert bool(found.status.exact.all()) == is_exact
    distance = (labels_of(found) - labels_of(expected)).abs().max()
    assert distance < (1e-9 if is_exact else 0.5)
    if is_exact:
        torch.testing.assert_close(found.log_partition, expected.log_partition)


def test_cliques_that_no_other_routine_takes_are_enumerated(cutoffs):
    cutoffs(marginals=2, treewidth=1)
    energy = MACHINES["cliques"]
    assert torch.equal(inference.marginals(energy).labels, exact.marginals(energy).labels)


def test_a_restricted_machine_takes_the_inference_of_its_training(cutoffs):
    cutoffs(marginals=2)
    for routine in (matrix_bp.marginals, mean_field.marginals):
        found = inference.marginals(BIPARTITE, matched=MatchedInference(routine, 3, tol=1e-9))
        assert torch.equal(found.visible, routine(BIPARTITE, num_iters=3, tol=1e-9).visible)
        name = "mean field" if routine is mean_field.marginals else "belief propagation"
        assert found.method == f"approximate, by {name}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", BINARY)
def test_log_partitions_are_exact(kind, size, cutoffs):
    cutoffs(**SIZES[size])
    energy = BINARY[kind]
    for known in (None, known_of(energy)):
        found, expected = (
            inference.log_partition(energy, known=known),
            exact.log_partition(energy, known=known),
        )
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("treewidth", [0, 8])
def test_log_partitions_are_differentiable(treewidth, cutoffs):
    cutoffs(elimination=1, treewidth=treewidth)
    path = MACHINES["path"]
    unary = path.unary.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(inference.log_partition(replace(path, unary=unary)).sum(), unary)
    torch.testing.assert_close((gradient + 1) / 2, exact.marginals(path).labels)


def test_the_best_few_of_many_labels_are_those_of_the_semidefinite_search():
    # Two parts of which each can be enumerated: the best few labellings pair the best few of either.
    parts = [random_pairwise_energy(seed, 12, 1, coupling=0.4) for seed in (0, 1)]
    pairwise = torch.block_diag(*(part.pairwise for part in parts))
    unary = torch.cat([part.unary for part in parts], 1)
    found = inference.decode(PairwiseEnergy(unary, pairwise), top_k=3)
    one, other = (exact.decode(part, top_k=3).objective - part.constant for part in parts)
    best = (one[:, :, None] + other[:, None]).flatten(1).sort(descending=True).values[:, :3]
    torch.testing.assert_close(found.objective, best)
    assert found.status.exact.all()


@pytest.mark.parametrize("treewidth", [1, 8])
def test_large_cliques_of_many_labels_are_decoded(cutoffs, treewidth):
    # Enumerated for the labels that are left free, of 30 in which three cliques meet.
    energy = CliqueEnergy(
        (*((label,) for label in range(30)), (0, 1, 2), (2, 5, 29, 7), (3, 4)),
        torch.randn(2, 33, generator=torch.Generator().manual_seed(3)).double(),
    )
    cutoffs(treewidth=treewidth)
    scores, losses = inference.decode(energy), inference.decode_hinge(energy, 2.0)
    assert scores.status.exact.all()
    assert losses.status.exact.all()
    # No other label is in a clique of several.
    known = torch.full((2, 30), torch.nan).double()
    apart = [label for label in range(30) if label not in (0, 1, 2, 3, 4, 5, 7, 29)]
    known[:, apart] = (energy.weight[:, apart] > 0).double()
    torch.testing.assert_close(scores.objective, exact.decode(energy, known=known).objective)
    torch.testing.assert_close(losses.objective, exact.decode_hinge(energy, 2.0, known=known).objective)


def test_known_labels_as_an_array_are_refused_by_their_type():
    with pytest.raises(ValueError, match="known: expected a tensor on cpu, got ndarray"):
        inference.marginals(random_pairwise_energy(0, 3, 1), known=np.full((1, 3), np.nan))


def test_unsupported_combinations_are_refused(cutoffs):
    many, cliques = random_pairwise_energy(0, 23), CliqueEnergy(((0, 1, 2),), torch.ones(1), num_labels=23)
    for energy in (CHAIN, TREE):
        for routine in (inference.decode, inference.marginals, inference.log_partition):
            with pytest.raises(ValueError, match="known: expected None for"):
                routine(energy, known=torch.full((1, 1), torch.nan))
    with pytest.raises(ValueError, match="top_k: expected 1 for a tree, got 2"):
        inference.decode(TREE, top_k=2)
    with pytest.raises(ValueError, match="top_k: expected 1 for a model with hidden units, got 3"):
        inference.decode(BIPARTITE, top_k=3)
    with pytest.raises(ValueError, match="top_k: expected 1 for decode_hinge, and for cliques of three"):
        inference.decode_hinge(many, top_k=2)
    for routine in (inference.decode, inference.decode_hinge):
        with pytest.raises(ValueError, match="top_k: expected an integer of at least 1"):
            routine(many, top_k=0)
        with pytest.raises(ValueError, match="node_limit: expected an integer of at least 1"):
            routine(MACHINES["pairwise"], node_limit=0)
        with pytest.raises(ValueError, match="known: expected shape"):
            routine(MACHINES["pairwise"], known=torch.full((1, LABELS), torch.nan))
    cutoffs(treewidth=1)
    with pytest.raises(
        ValueError, match=r"energy: expected cliques of at most two labels .* of 3 labels and 23 free labels"
    ):
        inference.marginals(cliques)
    with pytest.raises(ValueError, match="energy: expected at most 22 free labels"):
        inference.log_partition(many)
    cutoffs(marginals=2)
    with pytest.raises(ValueError, match="known: expected None for a directed model of more than 2 free"):
        inference.marginals(WITH_MARGINS["directed"], known=known_of(WITH_MARGINS["directed"]))


@pytest.mark.usefixtures("no_shape_checks")
def test_other_energies_are_refused_by_name():
    class OtherEnergy:
        """Of no kind in the library."""

    for routine in (inference.decode, inference.marginals, inference.log_partition):
        with pytest.raises(TypeError, match=r"PairwiseEnergy, CliqueEnergy, .* got OtherEnergy"):
            routine(OtherEnergy())
    for energy in (OtherEnergy(), BIPARTITE, CHAIN, TREE):
        message = f"energy: expected one of DirectedEnergy, .*, got {type(energy).__name__}"
        with pytest.raises(TypeError, match=message):
            inference.decode_hinge(energy)


def test_marginals_of_many_labels_with_few_parents_are_exact():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    weight = torch.randn(39, generator=generator, dtype=torch.float64)
    chain = DirectedEnergy(unary, torch.diag(weight, -1), torch.arange(40))
    # P(y_t) from P(y_{t-1}), forwards.
    expected = [torch.sigmoid(2 * unary[:, 0])]
    for position in range(1, 40):
        given = [torch.sigmoid(2 * (unary[:, position] + spin * weight[position - 1])) for spin in (-1, 1)]
        expected.append((1 - expected[-1]) * given[0] + expected[-1] * given[1])
    found = inference.marginals(chain)
    assert found.method == "exact, by a junction tree"
    assert found.status.exact.all()
    torch.testing.assert_close(found.labels, torch.stack(expected, 1))
    torch.testing.assert_close(found.log_partition, torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)
    known = torch.full((3, 40), torch.nan, dtype=torch.float64)
    known[:, 0] = 1
    assert (inference.marginals(chain, known=known).labels[:, 0] == 1).all()
    torch.testing.assert_close(inference.log_partition(chain, known=known), expected[0].log())


def best_path(gains):
    """Labels of the largest sum of gains (steps, value before, value), the first value before being 0."""
    worth, choices = gains[0][0], []
    for step in gains[1:]:
        through = worth[:, None] + step
        choices.append(through.argmax(0))
        worth = through.max(0).values
    labels = [int(worth.argmax())]
    for choice in reversed(choices):
        labels.append(int(choice[labels[-1]]))
    return torch.tensor(labels[::-1]), worth.max()


@pytest.mark.parametrize("rule", ["most probable", "least hinge"])
def test_what_a_search_of_few_parents_leaves_open_is_proven_by_a_junction_tree(rule):
    labels, spins = 120, torch.tensor([-1.0, 1.0]).double()
    generator = torch.Generator().manual_seed(0)
    unary = 0.4 * torch.randn(2, labels, generator=generator, dtype=torch.float64)
    weight = torch.cat([torch.zeros(1), 0.5 * torch.randn(labels - 1, generator=generator)]).double()
    chain = DirectedEnergy(unary, torch.diag(weight[1:], -1), torch.arange(labels))
    decode = inference.decode if rule == "most probable" else inference.decode_hinge
    found = decode(chain, node_limit=200)
    assert found.status.exact.all()
    assert (found.nodes > labels).all()
    for row in range(2):
        field = unary[row][:, None, None] + weight[:, None, None] * spins[:, None]
        margins = field * spins
        if rule == "most probable":
            path, most = best_path(torch.nn.functional.logsigmoid(2 * margins))
        else:
            path, most = best_path(-(1 - margins).clamp(min=0))
            most = -most
        assert torch.equal(found.labels[row], path)
        torch.testing.assert_close(found.objective[row], most)
    # As many nodes prove little.
    alone = branch_and_bound.decode if rule == "most probable" else branch_and_bound.decode_hinge
    assert not alone(chain, node_limit=200).status.exact.any()
    rules = Constraints.of(["a -> not b"], [*"ab", *map(str, range(labels - 2))])
    obeying = decode(chain, node_limit=200, constraints=rules)
    assert obeying.status.exact.all()
    assert not obeying.labels[:, :2].all(1).any()


def test_hinges_of_sparse_machines_of_many_labels_are_decoded_by_a_junction_tree():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(29, generator=generator, dtype=torch.float64)
    unary = torch.randn(3, 30, generator=generator, dtype=torch.float64)
    machine = PairwiseEnergy(unary, torch.diag(weight, 1) + torch.diag(weight, -1))
    found = inference.decode_hinge(machine)
    assert found.status.exact.all()
    searched = undirected_branch_and_bound.decode_hinge(machine)
    assert (searched.objective >= found.objective - 1e-9).all()
    assert (searched.bound <= found.objective + 1e-9).all()
    torch.testing.assert_close(
        found.objective[searched.status.exact], searched.objective[searched.status.exact]
    )
