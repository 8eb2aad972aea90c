"""A report's numbers: checked against enumeration, scikit-learn and hand counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems.small import NAMES, NUM_LABELS, ORDERING, network, small_data
from sklearn.metrics import brier_score_loss, f1_score, precision_score, recall_score

from lmbm_torch.energies import BipartiteEnergy, CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.routes import table
from lmbm_torch.prediction.answers import mixture_log_prob, probabilities
from lmbm_torch.prediction.findings import Calibration, Dependencies, Findings, dependencies, findings
from lmbm_torch.prediction.predictor import Predictor


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def directed(size: int = 4, batch: int = 3) -> DirectedEnergy:
    return DirectedEnergy(drawn(batch, size), drawn(size, size, seed=1).tril(-1), torch.arange(size))


def pairwise(size: int = 4, batch: int = 3) -> PairwiseEnergy:
    half = 0.3 * drawn(size, size, seed=1).triu(1)
    return PairwiseEnergy(drawn(batch, size), half + half.mT)


def bipartite(size: int = 4, hidden: int = 3, batch: int = 3) -> BipartiteEnergy:
    return BipartiteEnergy(
        drawn(batch, size), drawn(batch, hidden, seed=1), 0.3 * drawn(size, hidden, seed=2)
    )


CLIQUES = CliqueEnergy(((0,), (1,), (0, 1, 2), (2, 3)), drawn(3, 4), num_labels=4)
ENERGIES = {"directed": directed(), "pairwise": pairwise(), "cliques": CLIQUES, "bipartite": bipartite()}


@pytest.mark.parametrize("name", ENERGIES)
def test_probabilities_of_few_labels_are_exact(name):
    energy = ENERGIES[name]
    found = probabilities(energy)
    labellings = torch.cartesian_prod(*[torch.arange(2)] * 4)[:, None].expand(-1, 3, -1)
    whole = mixture_log_prob([energy], labellings, found.log_partition).exp()
    assert torch.allclose(whole.sum(0), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(found.labels, torch.einsum("sb,sbi->bi", whole, labellings.double()))
    assert found.method == "exact, by enumeration"


def test_probabilities_of_many_labels_are_close_and_say_how(monkeypatch):
    monkeypatch.setattr(table, "LIMITS", replace(LIMITS, marginals=2, shared=2, treewidth=1))
    trained = MatchedInference(mean_field.marginals, 50, tol=1e-9)
    belief = MatchedInference(matrix_bp.marginals, 50, tol=1e-9)
    for energy, inference, method, is_normalised in (
        (directed(), None, "samples", True),
        (pairwise(), None, "mean field", False),
        (bipartite(), None, "belief propagation", False),
        (bipartite(), belief, "belief propagation", False),
        (bipartite(), trained, "mean field", False),
    ):
        found = probabilities(energy, inference)
        truth = exact.marginals(energy)
        expected = truth.visible if isinstance(energy, BipartiteEnergy) else truth.labels
        assert (found.labels - expected).abs().max() < 0.1
        assert method in found.method
        assert bool(found.log_partition.isfinite().all()) == is_normalised
        assert torch.equal(found.labels, probabilities(energy, inference).labels)
    assert torch.equal(probabilities(CLIQUES).labels, exact.marginals(CLIQUES).labels)


@pytest.mark.parametrize(("limit", "is_exact"), [(4, True), (3, False)])
def test_as_many_labels_are_enumerated_as_by_estimators(monkeypatch, limit, is_exact):
    monkeypatch.setattr(table, "LIMITS", replace(LIMITS, marginals=limit))
    data = small_data()
    estimator = LMSBNClassifier(ordering="index", random_state=0).fit(data.features, data.labels)
    assert bool(estimator.marginals(data.features).status.exact.all()) == is_exact
    assert probabilities(estimator.energy(data.features)).method.startswith("exact") == is_exact


def test_dependencies_are_the_models_weights():
    labels = torch.zeros(3, 4, dtype=torch.int64)
    of_directed = dependencies(directed(), labels)
    assert torch.equal(of_directed.weights, directed().parents)
    assert of_directed.ordering.tolist() == [0, 1, 2, 3]
    assert torch.equal(dependencies(pairwise(), labels).weights, pairwise().pairwise)
    as_cliques = CliqueEnergy(((0, 1), (1, 3)), torch.tensor([[0.7, -0.2]] * 3), num_labels=4)
    found = dependencies(as_cliques, labels).weights
    assert found[0, 1] == found[1, 0] == pytest.approx(0.7)
    assert found[3, 1] == pytest.approx(-0.2)
    assert found.count_nonzero() == 4


def test_hidden_units_couple_labels_as_their_free_energy_does():
    coupling = torch.tensor([[2.0], [2.0], [-2.0]], dtype=torch.float64)
    energy = BipartiteEnergy(torch.zeros(2, 3).double(), torch.zeros(2, 1).double(), coupling)
    found = dependencies(energy, torch.zeros(2, 3, dtype=torch.int64)).weights
    soft = np.logaddexp(0, [0.0, 2.0, 4.0])
    assert found[0, 1] == pytest.approx((soft[2] - 2 * soft[1] + soft[0]) / 4)
    assert found[0, 2] < 0
    assert torch.equal(found, found.mT)
    assert dependencies(bipartite(size=129), torch.zeros(3, 129, dtype=torch.int64)) is None


def test_the_strongest_pulls_come_first_and_noise_is_left_out():
    weights = torch.tensor([[0.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [1.0, 0.001, 0.0]])
    assert Dependencies(weights, torch.arange(3), "").strongest(5) == [(0, 1, -2.0), (0, 2, 1.0)]
    assert Dependencies(weights + weights.mT, None, "").strongest(1) == [(1, 0, -2.0)]
    assert Dependencies(torch.zeros(3, 3), None, "").strongest(5) == []


def test_calibration_measures_the_distance_from_what_came_true():
    probability = torch.tensor([0.05, 0.05, 0.95, 1.0, 0.55, 0.55])
    found = Calibration.of(probability, torch.tensor([0, 1, 1, 1, 0, 1]))
    assert found.said == pytest.approx([0.05, 0.55, 0.975])
    assert found.true == pytest.approx([0.5, 0.5, 1.0])
    assert found.count.tolist() == [2, 2, 2]
    assert found.error == pytest.approx((0.45 + 0.05 + 0.025) / 3)
    said = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    came = torch.rand(20000, generator=torch.Generator().manual_seed(1)) < said
    assert Calibration.of(said, came).error < 0.02


def found_on(truth, joint, alone) -> Findings:
    truth, joint, alone = (torch.tensor(labels) for labels in (truth, joint, alone))
    unknown = torch.full((len(truth),), torch.nan)
    is_exact = torch.ones(len(truth), dtype=torch.bool)
    return Findings(
        ("a", "b"),
        np.arange(len(truth)),
        truth,
        joint,
        alone,
        alone * 0.8 + 0.1,
        unknown,
        is_exact,
        None,
        None,
        "by hand",
    )


def test_what_joint_decoding_changed_is_counted():
    found = found_on(
        truth=[[1, 1], [0, 0], [1, 0], [0, 1]],
        joint=[[1, 1], [0, 0], [1, 1], [1, 0]],
        alone=[[1, 0], [0, 0], [1, 0], [0, 0]],
    )
    assert found.changed_rows.tolist() == [0, 2, 3]
    assert found.mended.sum(0).tolist() == [0, 1]
    assert found.broken.sum(0).tolist() == [1, 1]
    assert found.rows_gained_and_lost() == (1, 1)
    assert found.sign_test() == 1.0
    assert found.metrics()["exact_match"] == (0.5, 0.5)
    assert found.joint_calibration() is None
    without = found.baseline()
    # Two in four are not most: the answer is 0 for both.
    assert (without["hamming_loss"], without["exact_match"], without["macro_f1"]) == (0.5, 0.25, 0)
    known = replace(found, share_in_training=np.array([0.6, np.nan]))
    assert (known.baseline()["hamming_loss"], known.baseline()["exact_match"]) == (0.5, 0.25)
    assert known.baseline()["macro_f1"] == pytest.approx(1 / 3)
    one_sided = found_on(truth=[[1, 1]] * 6, joint=[[1, 1]] * 6, alone=[[1, 0]] * 6)
    assert one_sided.sign_test() == pytest.approx(2 * 0.5**6)
    assert found_on(truth=[[1, 1]], joint=[[1, 1]], alone=[[1, 1]]).sign_test() == 1.0


def saved_model() -> Predictor:
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(drawn(*weight.shape, seed=len(weight)))
    return Predictor.of_model(model.eval(), NAMES, 1.0, None)


def test_findings_of_a_model_are_those_of_its_energy():
    saved, data = saved_model(), small_data()
    found = findings(saved, data, data.test)
    with torch.no_grad():
        energy = saved.energies(torch.from_numpy(data.test_features))[0]
    assert torch.allclose(found.probability, exact.marginals(energy).labels)
    assert torch.equal(found.alone, (exact.marginals(energy).labels >= 0.5).long())
    assert torch.equal(found.joint, exact.decode_hinge(energy).labels)
    assert torch.allclose(found.joint_probability, energy.log_prob(found.joint).exp())
    assert found.dependencies.ordering.tolist() == list(ORDERING)
    assert found.exact.all()
    assert len(found.nodes) == len(found.truth) == 20
    by_label, truth, joint = found.by_label(), found.truth.numpy(), found.joint.numpy()
    options = {"average": None, "zero_division": 0}
    for name, measure in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        assert by_label[name] == pytest.approx(measure(truth, joint, **options))
    assert by_label["error"] == pytest.approx((truth != joint).mean(0))
    assert by_label["true"].tolist() == truth.sum(0).tolist()
    assert found.brier_score() == pytest.approx(
        np.mean([brier_score_loss(truth[:, k], found.probability[:, k]) for k in range(NUM_LABELS)])
    )
    assert found.joint_calibration().count.sum() == 20


def test_what_labels_are_in_training_is_counted_where_they_are_known():
    saved, data = saved_model(), small_data(missing=30)
    labels = data.labels.copy()
    labels[:60, 2] = np.nan
    found = findings(saved, small_data(), data.test, None, labels[:60])
    expected = [np.nan if k == 2 else np.nanmean(labels[:60, k]) for k in range(NUM_LABELS)]
    assert found.share_in_training == pytest.approx(expected, nan_ok=True)
    assert findings(saved, small_data(), data.test).share_in_training is None
    assert found.pulls.labels == tuple(np.argsort(-found.truth.sum(0).numpy(), kind="stable").tolist())


def test_rows_without_known_labels_are_refused():
    data = small_data(missing=3)
    with pytest.raises(ValueError, match="labels: expected all labels, which metrics need, got 3 missing"):
        findings(saved_model(), data, data.train)
    others = replace(data, label_names=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="label_names: expected the model's"):
        findings(saved_model(), others, data.test)
