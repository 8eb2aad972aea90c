"""Label problems against their definition, written out label by label, and against energies and losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from strategies.label_problems import label_problems, random_inputs, random_problems

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.energies.base import cliques_up_to
from lmbm_torch.losses import local_hinge
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.networks.problems import LabelProblems


def random_weights(problems: LabelProblems, seed: int = 0) -> np.ndarray:
    """(columns, labels): weights for all that each label sees, as the solvers make them."""
    signs = np.random.default_rng(seed).normal(size=problems.spins.shape)
    return problems.weights(signs)


@given(seed=st.integers(0, 1000), num_labels=st.integers(1, 6), num_cliques=st.integers(0, 8))
def test_label_sees_constant_parents_and_products_of_its_cliques(seed, num_labels, num_cliques):
    problems = random_problems(seed, num_labels=num_labels, num_cliques=num_cliques, instances=9)
    _, labels = random_inputs(seed, 9, 4, num_labels)
    spins = {label: 2 * labels[:, label] - 1 for label in range(num_labels)}
    before = problems.ordering.tolist()
    asked = [[before[position] for position in clique] for clique in problems.cliques]
    for k, label in enumerate(before):
        expected = [np.ones(9), *[spins[parent] for parent in before[:k]]]
        for clique in asked:
            if max(clique, key=before.index) == label:
                expected.append(np.prod([spins[member] for member in clique if member != label], axis=0))
        seen = problems.context[:, problems.sees[:, k]]
        np.testing.assert_array_equal(seen, np.stack(expected, 1))
        np.testing.assert_array_equal(problems.spins[k], spins[label])


@given(problems=label_problems(missing=(0.0, 0.3)))
def test_arrays_are_laid_out_as_the_solvers_walk_them(problems):
    for each in (problems, problems.complete(random_weights(problems))):
        assert each.context.flags.c_contiguous
        assert each.spins.flags.c_contiguous


def test_independent_labels_see_nothing_of_each_other():
    problems = random_problems(0, parents=False)
    assert problems.sees.sum(0).tolist() == [1, 1, 1]


@given(problems=label_problems())
def test_fields_are_the_local_fields_of_the_directed_energy(problems):
    weights = random_weights(problems)
    network = problems.network(weights)
    order = problems.ordering
    spins = problems.spins[np.argsort(order)].T
    asked = [tuple(int(order[position]) for position in clique) for clique in problems.cliques]
    cliques = [asked[c] for c in np.argsort(problems.clique_order)]
    energy = DirectedEnergy(
        unary=torch.from_numpy(problems.features @ network.features.T + network.bias),
        parents=torch.from_numpy(network.parents),
        ordering=torch.from_numpy(order),
        cliques=tuple(cliques),
        clique_weight=torch.from_numpy(network.cliques) if cliques else None,
    )
    energy.check_values()
    fields = energy.local_fields(torch.from_numpy(spins > 0)).numpy()
    np.testing.assert_allclose(problems.fields(weights), fields[:, order], atol=1e-9)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_model_with_the_network_s_weights_has_the_problems_fields_and_losses(degree):
    features, labels = random_inputs(degree, 20, 4, 5)
    weight = np.random.default_rng(0).random(20)
    problems = LabelProblems.from_labels(
        features,
        labels,
        ordering=[3, 0, 4, 2, 1],
        parents=degree > 1,
        cliques=cliques_up_to(5, degree),
        C=0.7,
        sample_weight=weight,
        margin=1.5,
    )
    weights = random_weights(problems)
    model = SigmoidBeliefNetwork(4, 5, problems.ordering.tolist(), degree).double()
    model.assign(*map(torch.from_numpy, problems.network(weights)))
    with torch.no_grad():
        energy = model(torch.from_numpy(features))
        y = torch.from_numpy(labels)
        fields = energy.local_fields(y).numpy()
        hinge = local_hinge(energy, y, 1.5).numpy()
        square = float(model.weights().square().sum())
    np.testing.assert_allclose(problems.fields(weights), fields[:, problems.ordering])
    np.testing.assert_allclose(problems.hinge(weights).sum(1), hinge)
    np.testing.assert_allclose(problems.primal(weights).sum(), 0.5 * square + 0.7 * weight @ hinge)


@given(seed=st.integers(0, 1000))
def test_missing_labels_are_left_out_and_completed_as_losses_complete_them(seed):
    features, labels = random_inputs(seed, 15, 3, 4, missing=0.4)
    problems = LabelProblems.from_labels(features, labels, ordering=[2, 0, 3, 1], cliques=[(0, 1, 2)])
    weights = random_weights(problems, seed)
    complete = problems.complete(weights)
    assert (complete.spins != 0).all()
    observed = problems.spins != 0
    np.testing.assert_array_equal(complete.spins[observed], problems.spins[observed])

    network = problems.network(weights)
    energy = DirectedEnergy(
        unary=torch.from_numpy(features @ network.features.T + network.bias),
        parents=torch.from_numpy(network.parents),
        ordering=torch.tensor([2, 0, 3, 1]),
        cliques=((0, 1, 2),),
        clique_weight=torch.from_numpy(network.cliques),
    )
    hinge = local_hinge(energy, torch.from_numpy(labels)).numpy()
    left_out = replace(complete, spins=problems.spins)
    np.testing.assert_allclose(left_out.hinge(weights).sum(1), hinge, atol=1e-12)
    # Imputed labels agree with their field: their own loss is at most the margin, and counts.
    extra = complete.hinge(weights).sum(1) - hinge
    assert (extra >= -1e-12).all()
    assert (extra <= (~observed).sum(0) + 1e-12).all()


@given(problems=label_problems(missing=(0.0, 0.3)), seed=st.integers(0, 1000))
def test_dual_never_exceeds_primal_and_weights_gather_duals(problems, seed):
    share = np.random.default_rng(seed).random(problems.spins.shape)
    duals = share * problems.upper * (problems.spins != 0)
    weights = problems.weights(duals)
    features = problems.features.toarray() if sparse.issparse(problems.features) else problems.features
    for k in range(problems.num_labels):
        inputs = np.hstack([features, problems.context * problems.sees[:, k]])
        np.testing.assert_allclose(weights[:, k], inputs.T @ (duals[k] * problems.spins[k]), atol=1e-9)
    other = random_weights(problems, seed)
    assert (problems.dual(duals, weights) <= problems.primal(weights) + 1e-9).all()
    assert (problems.dual(duals, weights) <= problems.primal(other) + 1e-9).all()


def test_stages_end_where_labels_are_missing():
    features, labels = random_inputs(0, 10, 2, 5)
    assert list(LabelProblems.from_labels(features, labels).stages()) == [range(5)]
    labels[3, [1, 4]] = np.nan
    problems = LabelProblems.from_labels(features, labels, ordering=[0, 1, 2, 4, 3])
    assert list(problems.stages()) == [range(2), range(2, 4), range(4, 5)]


def test_csr_in_any_form_is_as_dense_and_is_left_as_it_came():
    dense = np.array([[1.0, 0.0, 5.0], [0.0, 2.0, 0.0]])
    data, indices, indptr = np.array([2.0, 3.0, 1.0, 2.0]), np.array([2, 2, 0, 1]), np.array([0, 3, 4])
    features = sparse.csr_array((data, indices, indptr), shape=(2, 3))
    labels = np.array([[0, 1], [1, 1]])
    problems = LabelProblems.from_labels(features, labels)
    np.testing.assert_array_equal(problems.features.toarray(), dense)
    np.testing.assert_array_equal(problems.square_norm, [26, 4])
    assert features.data.tolist() == [2, 3, 1, 2]
    assert features.indices.tolist() == [2, 2, 0, 1]
    assert features.indptr.tolist() == [0, 3, 4]


def test_norms_are_summed_in_double_precision():
    features = np.full((1, 1000), 1e20, np.float32)
    for rows in (features, sparse.csr_array(features)):
        square_norm = LabelProblems.from_labels(rows, np.ones((1, 1))).square_norm
        np.testing.assert_allclose(square_norm, 1000 * float(np.float32(1e20)) ** 2)


def test_given_ordering_is_copied():
    ordering = np.array([1, 0])
    problems = LabelProblems.from_labels(np.ones((2, 1)), np.eye(2), ordering=ordering)
    ordering[:] = [0, 1]
    assert problems.ordering.tolist() == [1, 0]


X, Y = np.ones((4, 2)), np.array([[0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]])


@pytest.mark.parametrize(
    ("error", "message", "changed"),
    [
        (ValueError, "features: expected shape", {"features": np.ones(4)}),
        (ValueError, "features: expected shape", {"features": np.ones((0, 2)), "labels": np.ones((0, 3))}),
        (ValueError, "features: expected shape", {"features": np.ones((4, 0))}),
        (ValueError, "features: expected finite", {"features": np.full((4, 2), np.nan)}),
        (ValueError, "features: expected finite", {"features": sparse.csr_array(np.full((4, 2), np.inf))}),
        (ValueError, "features: squared norms", {"features": np.full((4, 2), 1e200)}),
        (TypeError, "features: expected float32 or float64, got int64", {"features": np.ones((4, 2), int)}),
        (TypeError, "features: expected float32 or float64", {"features": np.ones((4, 2), np.float16)}),
        (TypeError, "features: expected float32", {"features": sparse.csr_array(np.ones((4, 2), int))}),
        (ValueError, "labels: expected shape", {"labels": Y[:3]}),
        (ValueError, "labels: expected shape", {"labels": Y[:, 0]}),
        (ValueError, "labels: expected shape", {"labels": Y[:, :0]}),
        (ValueError, "labels: expected 0, 1 or NaN", {"labels": 2 * Y - 1}),
        (ValueError, "labels: expected 0, 1 or NaN", {"labels": np.full((4, 3), np.inf)}),
        (TypeError, "labels: expected numbers", {"labels": Y.astype(str)}),
        (ValueError, "sample_weight: expected shape", {"sample_weight": np.ones(3)}),
        (ValueError, "sample_weight: expected finite", {"sample_weight": np.full(4, np.nan)}),
        (ValueError, "sample_weight: expected no negative", {"sample_weight": [1, 1, -1, 1]}),
        (ValueError, "ordering: expected a permutation", {"ordering": [0, 1, 1]}),
        (ValueError, "ordering: expected a permutation", {"ordering": [0, 1]}),
        (ValueError, "ordering: expected a permutation", {"ordering": [0.4, 1.0, 2.0]}),
        (ValueError, "ordering: expected a permutation", {"ordering": 3}),
        (ValueError, "cliques: expected 3 or more", {"cliques": [(0, 1)]}),
        (ValueError, "cliques: expected 3 or more", {"cliques": [(0, 1, 1)]}),
        (ValueError, "cliques: expected 3 or more", {"cliques": [(0, 1, 3)]}),
        (ValueError, "cliques: expected 3 or more", {"cliques": [(0, 1, -1)]}),
        (ValueError, "C: expected a finite number above 0", {"C": 0.0}),
        (ValueError, "C: expected a finite number above 0", {"C": "1"}),
        (ValueError, "margin: expected a finite number above 0", {"margin": np.inf}),
    ],
)
def test_bad_input_is_refused_by_name(error, message, changed):
    with pytest.raises(error, match=message):
        LabelProblems.from_labels(**{"features": X, "labels": Y, **changed})
