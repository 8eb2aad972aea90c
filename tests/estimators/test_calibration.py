"""Calibrated probabilities against closed forms, against enumeration, and on data that nobody trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from strategies.label_problems import random_inputs
from sweeps import slow
from torch.nn.functional import softplus

from lmbm_torch.calibration import scales as calibration
from lmbm_torch.calibration.scales import Calibration, common_scale, joint_scales, label_scales
from lmbm_torch.data import load
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import exact_negative_log_likelihood

X, Y = random_inputs(0, 60, 4, 4)
MODELS = {
    "network": LMSBNClassifier(random_state=0),
    "kernel network": LMSBNClassifier(kernel="rbf", random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
}
every = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def fields(size: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(size, 3)))


@pytest.mark.parametrize("true_scale", [0.2, 1.0, 6.0])
def test_common_scale_is_that_of_the_distribution_that_labels_were_drawn_from(true_scale):
    unary = fields(20_000, 0)
    energy = DirectedEnergy(unary, torch.zeros(3, 3).double(), torch.arange(3))
    drawn = np.random.default_rng(1).random(unary.shape) < expit(2 * true_scale * unary.numpy())
    found = common_scale([(energy, torch.from_numpy(drawn.astype(float)))])
    assert found.coupling_scale == pytest.approx(true_scale, rel=0.05)


def test_label_scales_are_platt_s_of_every_label():
    unary = fields(3_000, 2)
    energy = DirectedEnergy(unary, torch.zeros(3, 3).double(), torch.arange(3))
    scale, shift = np.array([0.5, 1.0, 3.0]), np.array([0.2, -1.0, 0.0])
    drawn = np.random.default_rng(3).random(unary.shape) < expit(2 * (scale * unary.numpy() + shift))
    found = label_scales([(energy, torch.from_numpy(drawn.astype(float)))])
    for k in range(3):
        platt = LogisticRegression(C=np.inf, tol=1e-8).fit(2 * unary[:, k, None].numpy(), drawn[:, k])
        # The penalty on scale and shift is that of one half of an instance or so.
        assert found.scale[k].item() == pytest.approx(platt.coef_[0, 0], rel=0.02)
        assert found.shift[k].item() == pytest.approx(platt.intercept_[0] / 2, abs=0.02)


def test_labels_that_are_told_apart_with_certainty_keep_finite_scales():
    unary = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]]).double()
    energy = DirectedEnergy(unary, torch.zeros(1, 1).double(), torch.arange(1))
    found = label_scales([(energy, (unary > 0).double())])
    common = common_scale([(energy, (unary > 0).double())])
    assert 0.5 * common.scale[0] <= found.scale[0] < 2 * common.scale[0]


def penalised_loss(held_out, relative: np.ndarray, shift: np.ndarray, coupling: float) -> float:
    """What :func:`label_scales` minimises, of energies that are calibrated one by one."""
    common = common_scale(held_out)
    scale = common.scale * torch.from_numpy(relative)
    calibration = Calibration(scale, torch.from_numpy(shift), common.coupling_scale * coupling)
    margins = [calibration.apply(energy).local_margins(labels) for energy, labels in held_out]
    away = np.concatenate([relative - 1, shift, [coupling - 1]])
    return sum(float(softplus(-2 * each).sum()) for each in margins) + 0.5 * float(away @ away)


@pytest.mark.parametrize("seed", range(3))
def test_label_scales_of_networks_are_least_in_the_penalised_loss(seed):
    random = np.random.default_rng(seed)
    held_out = []
    for size in (40, 25):
        unary, parents = random.normal(size=(size, 5)) * 3, np.tril(random.normal(size=(5, 5)), -1)
        energy = DirectedEnergy(torch.from_numpy(unary), torch.from_numpy(parents), torch.arange(5))
        # Fields that say the opposite of what is true: no scale above zero is right for the first label.
        says = np.where(np.arange(5) == 0, -unary, unary) + random.logistic(size=unary.shape)
        held_out.append((energy, torch.from_numpy((says > 0).astype(float))))
    found, common = label_scales(held_out), common_scale(held_out)
    relative, shift = (found.scale / common.scale).numpy(), found.shift.numpy()
    least = penalised_loss(held_out, relative, shift, 1.0)
    assert relative[0] == 0 < relative[1:].min()
    for k in range(5):
        for moved in (np.eye(5)[k] * 0.01, -np.eye(5)[k] * 0.01):
            assert least < penalised_loss(held_out, relative, shift + moved, 1.0)
            if (relative + moved).min() >= 0:
                assert least < penalised_loss(held_out, relative + moved, shift, 1.0)


def random_machine(instances: int, labels: int) -> PairwiseEnergy:
    random = np.random.default_rng(0)
    couplings = np.triu(random.normal(size=(labels, labels)), 1) / 3
    return PairwiseEnergy(
        torch.from_numpy(random.normal(size=(instances, labels))), torch.from_numpy(couplings + couplings.T)
    )


def test_label_scales_of_many_labels_in_a_machine_are_least_in_the_pseudo_likelihood():
    """Of instances with couplings of their own, whose labellings cannot be summed together."""
    machine = random_machine(80, 12)
    machine = PairwiseEnergy(machine.unary, machine.pairwise.expand(80, 12, 12))
    labels = np.random.default_rng(1).integers(0, 2, (80, 12))
    held_out = [(machine, torch.from_numpy(labels.astype(float)))]
    found, common = label_scales(held_out), common_scale(held_out)
    relative, shift = (found.scale / common.scale).numpy(), found.shift.numpy()
    coupling = found.coupling_scale / common.coupling_scale
    least = penalised_loss(held_out, relative, shift, coupling)
    for step in (-0.02, 0.02):
        assert least < penalised_loss(held_out, relative, shift + step, coupling)
        assert coupling + step < 0 or least < penalised_loss(held_out, relative, shift, coupling + step)


@pytest.mark.parametrize("labels", [3, 12])
def test_machines_get_the_scales_of_the_distribution_that_labels_were_drawn_from(labels):
    """By the likelihood of whole labellings: the pseudo-likelihood's marginals are off where fields are."""
    machine = random_machine(2_000, labels)
    true = Calibration(torch.full((labels,), 0.7).double(), torch.full((labels,), -0.3).double(), 1.5)
    drawn = exact.sample(true.apply(machine), 1, generator=torch.Generator().manual_seed(0))[0]
    held_out = [(machine.select(part), drawn[part].double()) for part in (slice(0, 900), slice(900, None))]
    found = label_scales(held_out)
    assert found.coupling_scale == pytest.approx(1.5, abs=0.15)
    assert float((found.scale - true.scale).abs().mean()) < 0.05
    assert float((found.shift - true.shift).abs().mean()) < 0.05


def test_only_so_many_instances_are_summed_as_time_allows(monkeypatch):
    machine = random_machine(100, 11)
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (100, 11))).double()
    monkeypatch.setattr(calibration, "MAX_LABELLINGS", 40 * 2**11)
    parts = [(machine.select(rows), labels[rows]) for rows in (slice(0, 60), slice(60, None))]
    fewer = [(energy.select(slice(0, 20)), labels[:20]) for energy, labels in parts]
    came, wanted = label_scales(parts), label_scales(fewer)
    assert torch.equal(came.scale, wanted.scale)
    assert came.coupling_scale == wanted.coupling_scale


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_rescaled_fields_are_scaled_and_shifted(seed):
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(size=shape))

    scale, shift, labels = normal(3).abs(), normal(3), torch.from_numpy(random.integers(0, 2, (5, 3)))
    cliques = ((0, 1, 2),)
    network = DirectedEnergy(
        normal(5, 3), normal(3, 3).tril(-1), torch.arange(3), cliques=cliques, clique_weight=normal(1)
    )
    torch.testing.assert_close(
        Calibration(scale, shift, 7.0).apply(network).local_fields(labels),
        scale * network.local_fields(labels) + shift,
    )
    couplings = normal(3, 3).triu(1)
    machine = PairwiseEnergy(normal(5, 3), couplings + couplings.mT)
    changed = Calibration(scale, shift, 0.5).apply(machine)
    pairs = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
    weight = torch.cat([machine.unary, couplings[[0, 0, 1], [1, 2, 2]].expand(5, 3)], 1)
    of_cliques = Calibration(scale, shift, 0.5).apply(CliqueEnergy(pairs, weight, num_labels=3))
    torch.testing.assert_close(changed.unary, scale * machine.unary + shift)
    torch.testing.assert_close(of_cliques.score(labels), changed.score(labels))
    torch.testing.assert_close(changed.pairwise, 0.5 * machine.pairwise)


@every
@pytest.mark.parametrize("calibrate", ["labels", slow("scale")])
def test_probabilities_are_those_of_the_calibrated_energy(model, calibrate):
    fitted = clone(model).set_params(calibrate=calibrate).fit(X, Y)
    (energy,) = fitted.calibrated([fitted.energy(X)])
    np.testing.assert_allclose(fitted.predict_proba(X), exact.marginals(energy).labels, atol=1e-12)
    log_prob = energy.score(torch.from_numpy(Y)) - exact.log_partition(energy)
    np.testing.assert_allclose(fitted.log_prob(X, Y), log_prob)
    assert (fitted.calibration_.scale != 1).all()
    assert (fitted.calibration_.shift != 0).any() == (calibrate == "labels")
    # Decoding by the hinge, or of largest score, is what it was.
    plain = clone(model).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), plain.predict(X))


@every
def test_scale_is_the_best_for_instances_held_out(model):
    fitted = clone(model).set_params(calibrate="scale", random_state=3).fit(X, Y)
    folds = KFold(5, shuffle=True, random_state=fitted._seed()).split(X)
    own = {"ordering": fitted.ordering_} if hasattr(fitted, "ordering_") else {}
    other = clone(model).set_params(random_state=3, **own)
    # By hand, so that no instance is judged by a model that has seen it.
    pairs = [
        (clone(other).fit(X[train], Y[train]).energy(X[held]), torch.from_numpy(Y[held]))
        for train, held in folds
    ]

    def loss(scale: float) -> float:
        changed = [(Calibration.of_scale(scale, 4).apply(energy), labels) for energy, labels in pairs]
        log_loss = sum(float(exact_negative_log_likelihood(*pair).sum()) for pair in changed)
        return log_loss + 0.5 * np.log(scale) ** 2

    scale = fitted.calibration_.coupling_scale
    assert loss(scale) <= min(loss(0.97 * scale), loss(1.03 * scale))


def test_structural_svm_has_no_probabilities_unless_calibrated():
    svm = StructuralSVMClassifier(random_state=0).fit(X, Y)
    for name in ("predict_proba", "marginals", "log_prob"):
        assert not hasattr(svm, name)
    with pytest.raises(AttributeError):
        svm.predict_proba(X)


def test_missing_labels_do_not_count():
    partial = Y.copy()
    partial[::3, 1] = np.nan
    fitted = LMSBNClassifier(calibrate=True, random_state=0).fit(X, partial)
    assert fitted.calibration_.scale.isfinite().all()
    unary = fields(3_000, 5)
    energy = DirectedEnergy(unary, torch.zeros(3, 3).double(), torch.arange(3))
    labels = (unary.sign() * fields(3_000, 6) > -0.5).double()
    hidden = labels.clone()
    hidden[:1_000] = torch.nan
    others = energy.select(slice(1_000, None))
    torch.testing.assert_close(
        label_scales([(energy, hidden)]).scale,
        label_scales([(others, labels[1_000:])]).scale,
        rtol=1e-2,
        atol=0,
    )


@pytest.mark.parametrize("num_labels", [4, 12])
def test_machines_calibrate_by_the_labels_that_they_know(num_labels):
    """By their likelihood whatever the missing ones are, or where that is not summed by completed ones."""
    machine = replace_couplings(random_machine(1_000, num_labels))
    true = Calibration.of_scale(1.6, num_labels)
    drawn = exact.sample(true.apply(machine), 1, generator=torch.Generator().manual_seed(0))[0].double()
    hidden = drawn.clone()
    hidden[torch.arange(1_000), torch.arange(1_000) % num_labels] = torch.nan
    whole, found = (common_scale([(machine, labels)]).coupling_scale for labels in (drawn, hidden))
    assert found == pytest.approx(1.6, abs=0.15)
    assert found != whole
    scales = label_scales([(machine, hidden)]).scale
    assert float((scales - 1.6).abs().mean()) < 0.15
    model = LMBMClassifier(calibrate=True, random_state=0)
    rows, partial = fields(60, 3), (fields(60, 4) > 0).double().numpy()
    partial[np.arange(60), np.arange(60) % 3] = np.nan
    assert model.fit(rows.numpy(), partial).calibration_.scale.isfinite().all()


def replace_couplings(machine: PairwiseEnergy) -> PairwiseEnergy:
    """Couplings of each instance's own, which more than ten labels are not summed with."""
    return PairwiseEnergy(machine.unary, machine.pairwise.expand(machine.batch_size, -1, -1).contiguous())


def test_few_instances_that_are_all_told_apart_make_no_certainty():
    random = np.random.default_rng(0)
    features = np.concatenate([random.normal(-2, 1, (200, 6)), random.normal(2, 1, (200, 6))])
    truth = np.repeat([0, 1], 200)
    rows = random.permutation(400)
    train, test = rows[:40], rows[40:]
    for calibrate in ("scale", "labels", True):
        model = LMSBNClassifier(calibrate=calibrate, random_state=0).fit(features[train], truth[train])
        assert model.calibration_.scale.max() * model.calibration_.factors.max() < 40
        assert model.predict_proba(features[test]).max() < 1 - 1e-12


@pytest.mark.parametrize("calibrate", ["scale", "labels", "joint"])
@pytest.mark.parametrize("model", [LMSBNClassifier(), LMBMClassifier()])
def test_instances_count_as_often_as_their_weight(model, calibrate):
    def found(held_out, weights=None):
        answers = [(energy.unary > 0).double() for energy, _ in held_out]
        fit = {"scale": common_scale, "labels": label_scales}.get(calibrate)
        return fit(held_out, weights) if fit else joint_scales(held_out, answers, weights)

    energy = random_machine(90, 3)
    if isinstance(model, LMSBNClassifier):
        energy = DirectedEnergy(energy.unary, torch.zeros(3, 3).double(), torch.arange(3))
    labels = (energy.unary + fields(90, 7)[:, :3] > 0).double()
    weight = torch.arange(90).double() % 3
    some = [(energy.select(part), labels[part]) for part in (slice(0, 50), slice(50, None))]
    weights = [weight[:50], weight[50:]]
    came = found(some, weights)
    counting = weight > 0
    rows = torch.cat([(weight >= times).nonzero()[:, 0] for times in (1, 2)])
    for others in (
        found(some, [3 * each for each in weights]),
        found([(energy.select(counting), labels[counting])], [weight[counting]]),
    ):
        for one, other in zip(parameters(came), parameters(others), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    # Relative to their mean they sum to 60, where those repeated are 90: what is held before is stronger.
    repeated = found([(energy.select(rows), labels[rows])])
    scales = [each.scale * each.factors[0] for each in (came, repeated)]
    torch.testing.assert_close(*scales, rtol=0.2, atol=0.1)


def parameters(found: Calibration) -> list[torch.Tensor]:
    return [found.scale, found.shift, torch.as_tensor(found.coupling_scale), found.factors]


@pytest.mark.parametrize("model", [LMSBNClassifier(random_state=0), LMBMClassifier(random_state=0)])
def test_instances_without_weight_have_no_say(model):
    model = clone(model).set_params(calibrate="labels")
    plain = clone(model).fit(X, Y).calibration_
    weight = np.repeat([1.0, 0.0], len(X))
    found = model.fit(np.vstack([X, X]), np.vstack([Y, 1 - Y]), sample_weight=weight).calibration_
    assert float(found.scale.mean()) == pytest.approx(float(plain.scale.mean()), rel=0.4)


def test_ensembles_and_tuned_thresholds_pass_it_on():
    base = LMSBNClassifier(calibrate="labels", random_state=0)
    ensemble = LMSBNEnsembleClassifier(base, num_members=2, random_state=0).fit(X, Y)
    mean = np.mean([member.predict_proba(X) for member in ensemble.members_], 0)
    np.testing.assert_allclose(ensemble.predict_proba(X), mean)
    tuned = ThresholdTunedClassifier(base).fit(X, Y)
    (energy,) = tuned.network_.calibrated([tuned.energy(X)])
    np.testing.assert_allclose(tuned.predict_proba(X), exact.marginals(energy).labels)


def test_decoders_of_expectations_use_calibrated_probabilities():
    fitted = LMSBNClassifier(calibrate=True, decoder="hamming", random_state=0).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict_proba(X) >= 0.5)


def expected_calibration_error(probability: np.ndarray, labels: np.ndarray, bins: int = 10) -> float:
    """Σ_bins share · |mean probability − share of ones|."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    inside = [place == k for k in range(bins) if (place == k).any()]
    return sum(some.mean() * abs(probability[some].mean() - labels[some].mean()) for some in inside)


@pytest.mark.parametrize(
    ("model", "at_most"),
    [(LMSBNClassifier(random_state=0), 0.03), slow(LMBMClassifier(random_state=0), 0.05)],
)
def test_calibrated_on_real_data(model, at_most, data_folder):
    data = load("scene", data_folder)
    features, labels = data.features.astype(np.float64), data.labels
    fitted = clone(model).set_params(calibrate=True).fit(features[data.train], labels[data.train])
    plain = expected_calibration_error(
        clone(fitted)
        .set_params(calibrate=False)
        .fit(features[data.train], labels[data.train])
        .predict_proba(features[data.test]),
        labels[data.test],
    )
    found = expected_calibration_error(fitted.predict_proba(features[data.test]), labels[data.test])
    assert found <= min(at_most, 0.7 * plain)
