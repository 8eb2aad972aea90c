"""The table: every public routine of inference, for every kind of energy that it takes, and what it promises.

A new routine gets one row for each kind; :mod:`contracts.test_table` fails until it has them. Each ``test_``
module beside this one holds the rows to some of the promises, reading from the row which of them it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from contracts.enumerations import (
    EXPECTED_F1,
    EXPECTED_HAMMING,
    EXPECTED_JACCARD,
    EXPECTED_RIGHT,
    HINGE,
    JOINT_SCORE,
    MARGINAL_SCORE,
    MEAN_HINGE,
    MIXTURE,
    SCORE,
)
from contracts.kinds import (
    BIPARTITE,
    CHAIN,
    CHAINS,
    CLIQUE,
    DIRECTED,
    FACTOR,
    NETWORKS,
    PAIRWISE,
    SEMI_CHAIN,
    SEQUENTIAL,
    TREE,
)
from contracts.rows import Row
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp

BETWEEN = {
    "returns": "LogPartitionBounds",
    "claims": ("lower <= log_partition", "upper >= log_partition"),
    "breaks": ("rename",),
}
LOG_PARTITION = {
    "returns": "real batch",
    "claims": ("result == log_partition",),
    "gradients": ("result",),
}
MARGINALS = {
    "returns": "Marginals",
    "claims": ("labels == marginals", "log_partition == log_partition"),
    "proven": True,
}
BIPARTITE_MARGINALS = {
    "returns": "BipartiteMarginals",
    "claims": ("visible == marginals", "hidden == hidden", "log_partition == log_partition"),
    "proven": True,
}
CHAIN_MARGINALS = {
    "returns": "ChainMarginals",
    "takes": (),
    "claims": ("states == nodes", "edges == edges", "log_partition == log_partition"),
    "proven": True,
}
# Bounds of HiGHS are raised by its tolerance.
NEARLY = {"rtol": 1e-5, "atol": 1e-5}
FACTOR_MARGINALS = {
    "returns": "FactorMarginals",
    "claims": ("states == states", "log_partition == log_partition"),
    "proven": True,
}
TREE_MARGINALS = {**CHAIN_MARGINALS, "returns": "TreeMarginals"}
BEST = ("known", "top_k")
SAMPLES = ("known", "generator")
TOP = {"takes": BEST, "proven": True}
# Few iterations, before rounding has grown where they do not converge.
FEWER = {"num_iters": 4, "tol": 1e-3}
DRAWS = {"returns": "label samples batch labels", "takes": SAMPLES}
# A solver's path depends on rounding, and what it proves on its tolerance.
SOLVER = ("status.num_iters", "status.residual", "nodes")
# Which labellings tie is settled label by label, so that names decide how many are looked at.
NODES = ("status.num_iters", "nodes")
# How many prefixes were expanded depends on which are nearly as probable as the best.
ROUNDS = ("status.num_iters", "nodes")
# An example has as many rows as the one with most labellings; rounding decides which are just likely enough.
LIKELY = ("labels", "probability", "mass_left", "log_known", "status.residual", *ROUNDS)
STATE_MARGINALS = {
    "returns": "StateMarginals",
    "claims": ("states == states",),
    "incidental": ROUNDS,
    "breaks": ("flip",),
}
CERTIFIED = {"returns": "Decoding", "spares": ("generator",), "incidental": ROUNDS}
CHEAP = partial(matrix_bp.marginals, **FEWER)

# Labellings stand in the order in which they were found, and rows that none needs are filled up.
SPARSE = {
    "returns": "SparseMarginals",
    "takes": (),
    "gradients": ("states", "probabilities", "objective"),
    "incidental": ("labellings", "probabilities", *SOLVER),
}

ROWS = (
    # Sigmoid belief networks.
    Row(DIRECTED, "enumeration.exact.log_partition", **LOG_PARTITION),
    Row(DIRECTED, "enumeration.exact.marginals", **MARGINALS),
    Row(DIRECTED, "enumeration.exact.sample", {"num_samples": 5}, **DRAWS),
    Row(DIRECTED, "enumeration.exact.decode", decodes=SCORE, **TOP),
    Row(DIRECTED, "enumeration.exact.decode_hinge", decodes=HINGE, **TOP),
    Row(DIRECTED, "graphs.elimination.log_partition", **LOG_PARTITION),
    Row(DIRECTED, "graphs.elimination.marginals", **MARGINALS),
    Row(DIRECTED, "graphs.elimination.sample", {"num_samples": 5}, **DRAWS),
    Row(DIRECTED, "graphs.elimination.decode", refuses=("top_k",), decodes=SCORE, proven=True),
    Row(DIRECTED, "graphs.elimination.decode_hinge", refuses=("top_k",), decodes=HINGE, proven=True),
    Row(DIRECTED, "search.branch_and_bound.decode", decodes=SCORE, **TOP),
    Row(DIRECTED, "search.branch_and_bound.decode_hinge", decodes=HINGE, **TOP),
    Row(
        DIRECTED,
        "search.branch_and_bound.decode_hinge",
        {"cutoff": 2.0, "node_limit": 9},
        spares=("top_k",),
        decodes=HINGE,
    ),
    Row(DIRECTED, "search.beam_search.decode", decodes=SCORE),
    Row(DIRECTED, "search.beam_search.decode_hinge", decodes=HINGE),
    Row(DIRECTED, "search.beam_search.decode_hinge", {"width": 3}, decodes=HINGE),
    # As wide as the largest of these models has labellings.
    Row(DIRECTED, "search.beam_search.decode", {"width": 2**6}, decodes=SCORE, proven=True),
    Row(DIRECTED, "search.best_first.decode", decodes=SCORE, incidental=ROUNDS, **TOP),
    Row(
        DIRECTED,
        "search.best_first.decode",
        {"node_limit": 7},
        spares=("top_k",),
        decodes=SCORE,
        incidental=ROUNDS,
    ),
    Row(DIRECTED, "search.best_first.decode_depth_first", decodes=SCORE, incidental=ROUNDS, **TOP),
    Row(DIRECTED, "search.most_probable.labellings", incidental=LIKELY, returns="LikelyLabellings"),
    Row(DIRECTED, "search.most_probable.marginals", {"mass_left": 0.0}, **STATE_MARGINALS),
    Row(
        DIRECTED,
        "sampling.ancestral.sample",
        {"num_samples": 5},
        returns="label samples batch labels",
        takes=("generator",),
    ),
    Row(
        DIRECTED,
        "sampling.ancestral.marginals",
        {"num_samples": 500},
        returns="Marginals",
        takes=("generator",),
    ),
    # Several of them.
    Row(NETWORKS, "search.mixture.decode", takes=BEST, decodes=MIXTURE, proven=True),
    Row(NETWORKS, "search.mixture.decode_hinge", takes=BEST, decodes=MEAN_HINGE, proven=True),
    Row(NETWORKS, "search.mixture.decode", {"max_candidates": 1}, spares=("top_k",), decodes=MIXTURE),
    Row(
        NETWORKS, "search.mixture.decode_hinge", {"max_candidates": 1}, spares=("top_k",), decodes=MEAN_HINGE
    ),
    Row(NETWORKS, "search.mixture.decode", {"node_limit": 3}, spares=("top_k",), decodes=MIXTURE),
    Row(
        NETWORKS,
        "routes.quantities.decode_expected",
        {"measure": "hamming"},
        returns="Decoding",
        spares=("generator", "top_k"),
        decodes=EXPECTED_HAMMING,
        proven=True,
    ),
    Row(
        NETWORKS,
        "routes.quantities.decode_expected",
        {"measure": "f1"},
        returns="Decoding",
        spares=("generator", "top_k"),
        decodes=EXPECTED_F1,
        proven=True,
        breaks=("flip",),
    ),
    Row(
        NETWORKS,
        "routes.quantities.decode_expected",
        {"measure": "jaccard"},
        returns="Decoding",
        spares=("generator", "top_k"),
        decodes=EXPECTED_JACCARD,
        proven=True,
        breaks=("flip",),
    ),
    Row(
        NETWORKS,
        "expected.bayes.decode",
        {"measure": "hamming", "mass_left": 0.0},
        decodes=EXPECTED_HAMMING,
        proven=True,
        **CERTIFIED,
    ),
    Row(NETWORKS, "search.mixture.labellings", incidental=LIKELY, returns="LikelyLabellings"),
    Row(NETWORKS, "search.mixture.marginals", {"mass_left": 0.0}, **STATE_MARGINALS),
    # What is asked for label by label, and several of it.
    Row(SEQUENTIAL, "search.best_first.decode", decodes=SCORE, incidental=ROUNDS, **TOP),
    Row(SEQUENTIAL, "search.best_first.decode_depth_first", decodes=SCORE, incidental=ROUNDS, **TOP),
    Row(SEQUENTIAL, "search.beam_search.decode", decodes=SCORE),
    Row(SEQUENTIAL, "search.beam_search.decode", {"width": 2**6}, decodes=SCORE, proven=True),
    Row(SEQUENTIAL, "search.most_probable.labellings", incidental=LIKELY, returns="LikelyLabellings"),
    Row(SEQUENTIAL, "search.most_probable.marginals", {"mass_left": 0.0}, **STATE_MARGINALS),
    Row(
        SEQUENTIAL,
        "sampling.ancestral.sample",
        {"num_samples": 5},
        returns="label samples batch labels",
        takes=("generator",),
    ),
    Row(CHAINS, "search.mixture.decode", takes=BEST, decodes=MIXTURE, incidental=ROUNDS, proven=True),
    Row(
        CHAINS,
        "routes.quantities.decode_expected",
        {"measure": "exact_match"},
        takes=BEST,
        spares=("generator",),
        decodes=MIXTURE,
        incidental=ROUNDS,
        proven=True,
    ),
    Row(CHAINS, "search.mixture.labellings", incidental=LIKELY, returns="LikelyLabellings"),
    Row(CHAINS, "search.mixture.marginals", {"mass_left": 0.0}, **STATE_MARGINALS),
    Row(
        CHAINS,
        "expected.bayes.decode",
        {"measure": "hamming", "mass_left": 0.0},
        decodes=EXPECTED_HAMMING,
        proven=True,
        marks=(pytest.mark.slow,),
        **CERTIFIED,
    ),
    Row(
        CHAINS,
        "expected.bayes.decode",
        {"measure": "f1", "mass_left": 0.0},
        decodes=EXPECTED_F1,
        proven=True,
        **CERTIFIED,
    ),
    Row(
        CHAINS,
        "expected.bayes.decode",
        {"measure": "jaccard", "mass_left": 0.0},
        decodes=EXPECTED_JACCARD,
        marks=(pytest.mark.slow,),
        **CERTIFIED,
    ),
    # Boltzmann machines by pairs.
    Row(PAIRWISE, "enumeration.exact.log_partition", **LOG_PARTITION),
    Row(PAIRWISE, "enumeration.exact.marginals", **MARGINALS),
    Row(PAIRWISE, "enumeration.exact.sample", {"num_samples": 5}, **DRAWS),
    Row(PAIRWISE, "enumeration.exact.decode", decodes=SCORE, **TOP),
    Row(PAIRWISE, "enumeration.exact.decode_hinge", decodes=HINGE, **TOP),
    Row(PAIRWISE, "graphs.elimination.log_partition", **LOG_PARTITION),
    Row(PAIRWISE, "graphs.elimination.marginals", **MARGINALS),
    Row(PAIRWISE, "graphs.elimination.sample", {"num_samples": 5}, **DRAWS),
    Row(PAIRWISE, "graphs.elimination.decode", refuses=("top_k",), decodes=SCORE, proven=True),
    Row(PAIRWISE, "graphs.elimination.decode_hinge", refuses=("top_k",), decodes=HINGE, proven=True),
    Row(
        PAIRWISE,
        "messages.mean_field.marginals",
        returns="Marginals",
        claims=("log_partition <= log_partition",),
        breaks=("rename",),
    ),
    Row(PAIRWISE, "messages.mini_buckets.bounds", {"width": 1, "num_iters": 3}, **BETWEEN),
    Row(PAIRWISE, "sampling.gibbs.sample", {"num_steps": 3}, returns="label batch labels", takes=SAMPLES),
    Row(PAIRWISE, "search.undirected_branch_and_bound.decode", decodes=SCORE, proven=True, incidental=NODES),
    Row(
        PAIRWISE,
        "search.undirected_branch_and_bound.decode_hinge",
        decodes=HINGE,
        proven=True,
        incidental=NODES,
    ),
    Row(
        PAIRWISE,
        "search.undirected_branch_and_bound.decode",
        {"node_limit": 9},
        decodes=SCORE,
        incidental=NODES,
    ),
    Row(
        PAIRWISE,
        "search.undirected_branch_and_bound.decode_hinge",
        {"node_limit": 9},
        decodes=HINGE,
        incidental=NODES,
    ),
    Row(PAIRWISE, "relaxations.semidefinite.decoding.decode", decodes=SCORE, incidental=NODES, **TOP),
    Row(PAIRWISE, "relaxations.lp_relaxation.decode", decodes=SCORE, incidental=SOLVER),
    Row(PAIRWISE, "search.undirected_branch_and_bound.decode_by_flips", decodes=SCORE),
    # The signs of all examples' couplings decide which constraints there are, and so which of equally good
    # points the solver ends at.
    Row(
        PAIRWISE,
        "relaxations.lp_relaxation.decode_hinge",
        decodes=HINGE,
        incidental=SOLVER,
        shared=("relaxed",),
    ),
    Row(PAIRWISE, "relaxations.integer_program.decode", decodes=SCORE, incidental=SOLVER),
    Row(PAIRWISE, "relaxations.integer_program.decode_hinge", decodes=HINGE, incidental=SOLVER),
    Row(PAIRWISE, "relaxations.integer_program.decode", {"node_limit": 1}, decodes=SCORE, incidental=SOLVER),
    Row(PAIRWISE, "relaxations.cost_function_network.decode", decodes=SCORE, incidental=SOLVER),
    Row(
        PAIRWISE,
        "relaxations.lp_layer.relaxed_labels",
        returns="probability batch labels",
        takes=(),
        gradients=("result",),
        limits={"rtol": 0, "atol": 1e-5},
        # cvxpylayers reads tensors as NumPy 1 did.
        marks=(pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),),
    ),
    Row(
        PAIRWISE,
        "relaxations.sparse_map.marginals",
        claims=("objective <= best", "objective >= least_regularised", "bound >= least_regularised"),
        # States change places: test_sparse_map.
        breaks=("flip",),
        **SPARSE,
    ),
    # By larger cliques.
    Row(CLIQUE, "enumeration.exact.log_partition", **LOG_PARTITION),
    Row(CLIQUE, "enumeration.exact.marginals", **MARGINALS),
    Row(CLIQUE, "enumeration.exact.sample", {"num_samples": 5}, **DRAWS),
    Row(CLIQUE, "enumeration.exact.decode", decodes=SCORE, **TOP),
    Row(CLIQUE, "enumeration.exact.decode_hinge", decodes=HINGE, **TOP),
    Row(CLIQUE, "relaxations.sparse_map.marginals", breaks=("flip",), **SPARSE),
    Row(CLIQUE, "graphs.elimination.log_partition", **LOG_PARTITION),
    Row(CLIQUE, "graphs.elimination.marginals", **MARGINALS),
    Row(CLIQUE, "graphs.elimination.sample", {"num_samples": 5}, **DRAWS),
    Row(CLIQUE, "graphs.elimination.decode", refuses=("top_k",), decodes=SCORE, proven=True),
    Row(CLIQUE, "graphs.elimination.decode_hinge", refuses=("top_k",), decodes=HINGE, proven=True),
    # Of three or more labels the product's inequalities are not those of the product of their opposites.
    Row(
        CLIQUE,
        "relaxations.lp_relaxation.decode",
        decodes=SCORE,
        incidental=SOLVER,
        shared=("relaxed",),
        breaks=("flip",),
    ),
    Row(
        CLIQUE,
        "relaxations.lp_relaxation.decode_hinge",
        decodes=HINGE,
        incidental=SOLVER,
        shared=("relaxed",),
        breaks=("flip",),
    ),
    Row(CLIQUE, "relaxations.integer_program.decode", decodes=SCORE, incidental=SOLVER),
    Row(CLIQUE, "relaxations.integer_program.decode_hinge", decodes=HINGE, incidental=SOLVER),
    Row(CLIQUE, "messages.mini_buckets.bounds", {"num_iters": 3}, **BETWEEN),
    # Restricted Boltzmann machines; few iterations, for the strong ones of these models are chaotic.
    Row(BIPARTITE, "enumeration.exact.log_partition", **LOG_PARTITION),
    Row(BIPARTITE, "enumeration.exact.marginals", **BIPARTITE_MARGINALS),
    Row(BIPARTITE, "enumeration.exact.sample", {"num_samples": 5}, **DRAWS),
    Row(
        BIPARTITE,
        "enumeration.exact.pairwise_marginals",
        returns="real batch labels hidden",
        claims=("result == pairs",),
    ),
    Row(BIPARTITE, "enumeration.exact.decode", refuses=("top_k",), decodes=JOINT_SCORE, proven=True),
    Row(BIPARTITE, "enumeration.exact.marginal_map", decodes=MARGINAL_SCORE, proven=True),
    Row(
        BIPARTITE,
        "messages.matrix_bp.marginals",
        FEWER,
        returns="BipartiteMarginals",
        gradients=("log_partition",),
        stationary=True,
    ),
    Row(BIPARTITE, "messages.matrix_bp.max_marginals", FEWER, returns="BipartiteMarginals"),
    Row(BIPARTITE, "messages.matrix_bp.marginal_map", FEWER, decodes=MARGINAL_SCORE, residual_is_gap=False),
    Row(
        BIPARTITE,
        "messages.mean_field.marginals",
        returns="BipartiteMarginals",
        claims=("log_partition <= log_partition",),
    ),
    Row(BIPARTITE, "sampling.gibbs.sample", {"num_steps": 3}, returns="BipartiteSamples", takes=SAMPLES),
    Row(
        BIPARTITE,
        "sampling.annealed_importance.estimate",
        {"num_chains": 5, "num_temperatures": 10},
        returns="Estimate",
        takes=SAMPLES,
    ),
    Row(
        BIPARTITE,
        "messages.scheduled_bp.marginals",
        {"num_iters": 200, "tol": 1e-5},
        returns="BipartiteMarginals",
        breaks=("rename",),
        incidental=("status.num_iters", "status.residual"),
        shared=("status.num_iters", "status.residual"),
    ),
    Row(
        BIPARTITE,
        "messages.scheduled_bp.marginal_map",
        decodes=MARGINAL_SCORE,
        residual_is_gap=False,
        breaks=("rename",),
    ),
    Row(BIPARTITE, "messages.conditional_modes.decode", decodes=JOINT_SCORE),
    Row(BIPARTITE, "messages.conditional_modes.marginal_map", decodes=MARGINAL_SCORE, breaks=("rename",)),
    Row(BIPARTITE, "messages.dual_decomposition.marginal_map", decodes=MARGINAL_SCORE, breaks=("rename",)),
    Row(
        BIPARTITE,
        "messages.modes.marginal_modes",
        {"marginals": exact.marginals},
        takes=(),
        decodes=EXPECTED_RIGHT,
        proven=True,
    ),
    Row(BIPARTITE, "messages.modes.marginal_modes", {"marginals": CHEAP}, takes=()),
    Row(
        BIPARTITE,
        "messages.modes.joint_modes",
        {"max_marginals": partial(matrix_bp.max_marginals, **FEWER)},
        takes=(),
        decodes=JOINT_SCORE,
        residual_is_gap=False,
    ),
    # Chains, trees and segments.
    Row(CHAIN, "trees.chain_dp.log_partition", takes=(), **LOG_PARTITION),
    Row(CHAIN, "trees.chain_dp.marginals", **CHAIN_MARGINALS),
    Row(
        CHAIN,
        "trees.chain_dp.entropy",
        returns="real batch",
        takes=(),
        claims=("result == entropy",),
        gradients=("result",),
    ),
    Row(
        CHAIN,
        "trees.chain_dp.sample",
        {"num_samples": 5},
        returns="label samples batch labels",
        takes=("generator",),
    ),
    Row(CHAIN, "relaxations.sparse_map.marginals", **SPARSE),
    Row(CHAIN, "trees.chain_dp.decode", takes=("top_k",), decodes=SCORE, proven=True),
    Row(TREE, "trees.tree_dp.log_partition", takes=(), **LOG_PARTITION),
    Row(TREE, "trees.tree_dp.marginals", **TREE_MARGINALS),
    Row(TREE, "relaxations.sparse_map.marginals", **SPARSE),
    Row(TREE, "trees.tree_dp.decode", takes=(), decodes=SCORE, proven=True),
    Row(SEMI_CHAIN, "trees.semi_chain_dp.log_partition", takes=(), **LOG_PARTITION),
    Row(
        SEMI_CHAIN,
        "trees.semi_chain_dp.marginals",
        returns="StateMarginals",
        takes=(),
        claims=("states == states", "log_partition == log_partition"),
        proven=True,
    ),
    Row(SEMI_CHAIN, "trees.semi_chain_dp.decode", takes=(), decodes=SCORE, proven=True),
    # Graphs of tables.
    Row(FACTOR, "relaxations.sparse_map.marginals", **SPARSE),
    Row(FACTOR, "graphs.elimination.log_partition", **LOG_PARTITION),
    Row(FACTOR, "graphs.elimination.marginals", **FACTOR_MARGINALS),
    Row(FACTOR, "graphs.elimination.sample", {"num_samples": 5}, **DRAWS),
    Row(FACTOR, "graphs.elimination.decode", takes=("known",), spares=("top_k",), decodes=SCORE, proven=True),
    Row(FACTOR, "graphs.elimination.decode_hinge", spares=("top_k",), decodes=HINGE, proven=True),
    Row(FACTOR, "graphs.dual_ascent.decode", decodes=SCORE),
    Row(FACTOR, "graphs.dual_ascent.branch_and_bound", decodes=SCORE, proven=True),
    Row(FACTOR, "graphs.belief_propagation.decode", residual_is_gap=False),
    Row(FACTOR, "graphs.belief_propagation.marginals", {"num_iters": 8}, returns="FactorMarginals"),
    Row(
        FACTOR,
        "graphs.belief_propagation.mean_field",
        returns="FactorMarginals",
        claims=("log_partition <= log_partition",),
    ),
    Row(FACTOR, "graphs.programming.decode", decodes=SCORE, incidental=SOLVER, limits=NEARLY),
    Row(FACTOR, "graphs.programming.decode_relaxed", decodes=SCORE, incidental=SOLVER, limits=NEARLY),
    Row(FACTOR, "relaxations.cost_function_network.decode", decodes=SCORE, incidental=SOLVER),
    Row(FACTOR, "graphs.cycles.decode", decodes=SCORE, incidental=SOLVER, limits=NEARLY),
    Row(FACTOR, "messages.mini_buckets.bounds", {"width": 1, "num_iters": 3}, **BETWEEN),
    Row(FACTOR, "graphs.gibbs.sample", {"num_samples": 5, "num_steps": 3}, **DRAWS),
    Row(FACTOR, "routes.quantities.decode", takes=("known",), spares=("top_k",), decodes=SCORE, proven=True),
    Row(FACTOR, "routes.quantities.decode_hinge", spares=("top_k",), decodes=HINGE, proven=True),
    Row(FACTOR, "routes.quantities.marginals", spares=("generator",), **FACTOR_MARGINALS),
    Row(FACTOR, "routes.quantities.log_partition", **LOG_PARTITION),
    Row(FACTOR, "routes.quantities.sample", {"num_samples": 5}, **DRAWS),
    # Whatever the kind; of these sizes all is exact, and nothing is drawn.
    Row(DIRECTED, "routes.quantities.decode", decodes=SCORE, **TOP),
    Row(SEQUENTIAL, "routes.quantities.decode", decodes=SCORE, incidental=ROUNDS, **TOP),
    Row(
        SEQUENTIAL,
        "routes.quantities.marginals",
        spares=("generator",),
        returns="StateMarginals",
        incidental=("states", *ROUNDS),
    ),
    Row(PAIRWISE, "routes.quantities.decode", decodes=SCORE, **TOP),
    Row(CLIQUE, "routes.quantities.decode", decodes=SCORE, **TOP),
    Row(BIPARTITE, "routes.quantities.decode", refuses=("top_k",), decodes=MARGINAL_SCORE, proven=True),
    Row(CHAIN, "routes.quantities.decode", takes=("top_k",), refuses=("known",), decodes=SCORE, proven=True),
    Row(TREE, "routes.quantities.decode", takes=(), refuses=("known", "top_k"), decodes=SCORE, proven=True),
    Row(DIRECTED, "routes.quantities.decode_hinge", decodes=HINGE, **TOP),
    Row(PAIRWISE, "routes.quantities.decode_hinge", decodes=HINGE, **TOP),
    Row(CLIQUE, "routes.quantities.decode_hinge", decodes=HINGE, **TOP),
    Row(DIRECTED, "routes.quantities.marginals", spares=("generator",), **MARGINALS),
    Row(PAIRWISE, "routes.quantities.marginals", spares=("generator",), **MARGINALS),
    Row(CLIQUE, "routes.quantities.marginals", spares=("generator",), **MARGINALS),
    Row(BIPARTITE, "routes.quantities.marginals", spares=("generator",), **BIPARTITE_MARGINALS),
    Row(CHAIN, "routes.quantities.marginals", refuses=("known",), spares=("generator",), **CHAIN_MARGINALS),
    Row(TREE, "routes.quantities.marginals", refuses=("known",), spares=("generator",), **TREE_MARGINALS),
    Row(DIRECTED, "routes.quantities.log_partition", **LOG_PARTITION),
    Row(PAIRWISE, "routes.quantities.log_partition", **LOG_PARTITION),
    Row(CLIQUE, "routes.quantities.log_partition", **LOG_PARTITION),
    Row(BIPARTITE, "routes.quantities.log_partition", **LOG_PARTITION),
    Row(CHAIN, "routes.quantities.log_partition", takes=(), refuses=("known",), **LOG_PARTITION),
    Row(TREE, "routes.quantities.log_partition", takes=(), refuses=("known",), **LOG_PARTITION),
    Row(DIRECTED, "routes.quantities.sample", {"num_samples": 5}, **DRAWS),
    Row(PAIRWISE, "routes.quantities.sample", {"num_samples": 5}, **DRAWS),
    Row(CLIQUE, "routes.quantities.sample", {"num_samples": 5}, **DRAWS),
    Row(BIPARTITE, "routes.quantities.sample", {"num_samples": 5}, **DRAWS),
    Row(
        SEQUENTIAL,
        "routes.quantities.sample",
        {"num_samples": 5},
        returns="label samples batch labels",
        takes=("generator",),
        refuses=("known",),
    ),
    Row(
        CHAIN,
        "routes.quantities.sample",
        {"num_samples": 5},
        returns="label samples batch labels",
        takes=("generator",),
        refuses=("known",),
    ),
)

# What is public and has no row, each with its reason.
EXEMPT = {
    "sampling.annealed_importance.reverse": "labels too: test_reverse_annealing enumerates",
    "sampling.log_likelihood.bounds": "takes one machine and any number of labels: test_log_likelihood",
    "sampling.tempering.sample": "a path of energies too: test_tempering enumerates",
    "sampling.tempering.path_from_base": "energies, of an energy",
    "under_rules.constrained.decode": "a routine and rules too: test_constrained compares",
    "under_rules.constrained.decode_loss": "the same",
    "under_rules.constrained.where_broken": "the same, of two routines",
    "under_rules.constrained.restricted": "an energy, of an energy and rules",
    "graphs.elimination.fits": "a bool, of a structure, by its memory: test_graph_routes",
    "graphs.elimination.width": "a number, of a structure: test_graph_elimination",
    "graphs.tree_reweighted.marginals": "tables of pairs alone: test_tree_reweighted",
    "graphs.belief_propagation.entries": "beliefs of tables, for training: test_graph_classifier",
    "expected.bayes.decode_allowed": "takes rules beside energies: test_bayes_under_rules enumerates",
    "expected.bayes.decode_most_probable": "the same",
    "expected.measures.expected": "values in the place of an energy",
    "expected.measures.labelling_of_most_f1": "weights in the place of an energy: test_measures",
    "expected.bayes.enumerated": "where the table of routes leads: routes.quantities.decode_expected",
    "messages.modes.decode": "takes marginals in the place of an energy: test_most_right enumerates",
    "search.mixture.check_members": "the refusals that mixtures and Bayes-optimal decodings share",
    "enumeration.half_products.labellings": "labels, of a number: test_label_halves",
    "enumeration.half_products.log_partition": "matrices in the place of an energy: test_label_halves",
    "enumeration.half_products.moments_by_halves": "the same: test_spin_moments",
    "enumeration.half_products.sums": "the same: test_label_halves",
    "enumeration.half_products.moments": "sums over the examples: test_spin_moments enumerates them",
    "messages.matrix_bp.moments": "what two others return at once: test_matrix_bp_gradients",
    "search.most_probable.above": "a threshold of each example too: test_most_probable enumerates",
    "search.mixture.log_prob": "scores labels that it is given, as energies do",
}


def rows_that(holds: Callable[[Row], object]) -> pytest.MarkDecorator:
    """The test for each row of which this is true."""
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=str(row), marks=row.marks) for row in ROWS if holds(row)]
    )


every_row = rows_that(lambda row: True)
