"""The ensemble predicts by the mean of its members' losses, and its members differ in their order alone."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import LMSBNClassifier, LMSBNEnsembleClassifier
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import ancestral

X, Y = random_inputs(0, 60, 4, 5)
BASE = LMSBNClassifier(2.0, ordering="index", margin=1.5, tol=1e-6)
FITTED = LMSBNEnsembleClassifier(BASE, num_members=4, random_state=0).fit(X, Y)
EVERY = torch.tensor(list(itertools.product([0, 1], repeat=5)))[:, None]


def mean_losses(ensemble: LMSBNEnsembleClassifier, margin: float = 1.5) -> torch.Tensor:
    """(labellings, instances), over all 32 labellings."""
    margins = torch.stack([energy.local_margins(EVERY) for energy in ensemble.energies(X)])
    return (margin - margins).clamp(min=0).sum(-1).mean(0)


def test_members_are_the_base_in_other_orders():
    assert len(FITTED.members_) == 4
    assert FITTED.members_[0].ordering_.tolist() == [0, 1, 2, 3, 4]
    assert len({tuple(member.ordering_) for member in FITTED.members_}) > 1
    for member in FITTED.members_:
        assert (member.C, member.margin, member.tol) == (2.0, 1.5, 1e-6)
        alone = LMSBNClassifier(2.0, ordering=member.ordering_, margin=1.5, tol=1e-6).fit(X, Y)
        np.testing.assert_allclose(member.coef_, alone.coef_, atol=0.02)
    assert not hasattr(BASE, "coef_")


def test_prediction_has_the_least_mean_loss_of_all_labellings():
    losses = mean_losses(FITTED)
    found = FITTED.decode(X)
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, losses.min(0).values)
    np.testing.assert_array_equal(FITTED.predict(X), EVERY[losses.argmin(0), 0].numpy())


def test_members_may_be_decoded_with_another_margin_than_they_were_trained():
    base = clone(BASE).set_params(decoding_margin=0.4)
    ensemble = LMSBNEnsembleClassifier(base, num_members=3, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(ensemble.members_[0].coef_, FITTED.members_[0].coef_)
    losses = mean_losses(ensemble, 0.4)
    torch.testing.assert_close(ensemble.decode(X).objective, losses.min(0).values)
    np.testing.assert_array_equal(ensemble.predict(X), EVERY[losses.argmin(0), 0].numpy())


def test_known_labels_are_kept_and_the_rest_decoded():
    known = np.where(np.random.default_rng(0).random(Y.shape) < 0.4, Y, np.nan)
    agrees = torch.from_numpy(np.isnan(known) | (known == EVERY.numpy())).all(-1)
    losses = mean_losses(FITTED).masked_fill(~agrees, torch.inf)
    np.testing.assert_array_equal(FITTED.predict(X, known=known), EVERY[losses.argmin(0), 0].numpy())


def test_probabilities_are_those_of_the_mixture():
    members = [exact.marginals(energy).labels.numpy() for energy in FITTED.energies(X)]
    np.testing.assert_allclose(FITTED.predict_proba(X), np.mean(members, 0))
    joint = [np.exp(member.log_prob(X, Y)) for member in FITTED.members_]
    np.testing.assert_allclose(np.exp(FITTED.log_prob(X, Y)), np.mean(joint, 0))


def test_marginals_are_those_of_the_mixture():
    found = FITTED.marginals(X)
    members = [exact.marginals(energy).labels for energy in FITTED.energies(X)]
    torch.testing.assert_close(found.labels, torch.stack(members).mean(0))
    assert found.status.exact.all()
    assert found.standard_error is None
    labels = np.random.default_rng(0).integers(0, 2, (60, 21))
    wide = LMSBNEnsembleClassifier(BASE, num_members=2, random_state=0).fit(X, labels)
    found, spread = wide.marginals(X), torch.zeros(60, 21, dtype=torch.float64)
    generator = torch.Generator().manual_seed(int(np.random.RandomState(0).randint(2**31)))
    for energy in wide.energies(X):
        spread += ancestral.marginals(energy, 1000, generator=generator).standard_error ** 2
    assert found.standard_error is not None
    torch.testing.assert_close(found.standard_error, spread.sqrt() / 2)
    torch.testing.assert_close(found.status.residual, found.standard_error.amax(-1))
    assert not found.status.exact.any()


@pytest.mark.parametrize("decoder", ["hamming", "f1", "jaccard", "exact_match"])
def test_decoders_maximise_the_expected_measure_of_the_mixture(decoder):
    ensemble = LMSBNEnsembleClassifier(BASE, num_members=2, decoder=decoder, random_state=0).fit(X, Y)
    energies = ensemble.energies(X)
    known = np.where(np.random.default_rng(0).random(Y.shape) < 0.3, Y, np.nan)
    find = partial(decode_expected, measure=decoder)
    np.testing.assert_array_equal(ensemble.predict(X), find(energies).labels)
    given = find(energies, known=torch.from_numpy(known)).labels
    np.testing.assert_array_equal(ensemble.predict(X, known=known), given)
    single = LMSBNClassifier(ordering="index", decoder=decoder, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(single.predict(X), find([single.energy(X)]).labels)


def test_several_labellings_begin_with_the_prediction():
    found = FITTED.decode(X, top_k=3)
    assert found.status.exact.all()
    np.testing.assert_array_equal(found.labels[:, 0], FITTED.predict(X))
    torch.testing.assert_close(found.objective, mean_losses(FITTED).sort(0).values[:3].mT)


def test_candidates_bound_the_search():
    hurried = clone(FITTED).set_params(max_candidates=1).fit(X, Y)
    found, losses = hurried.decode(X), mean_losses(hurried)
    ended = int((~found.status.exact).sum())
    assert ended
    assert (found.bound <= losses.min(0).values + 1e-9).all()
    with pytest.warns(
        ConvergenceWarning, match=f"{ended} of 60 .* by node_limit=100000 or max_candidates=1;"
    ):
        hurried.predict(X)
    hurried.set_params(decoder="exact_match")
    assert not hurried.predict_decoding(X).status.exact.all()


@pytest.mark.parametrize("decoder", ["hinge", "exact_match"])
def test_nodes_bound_the_search(decoder):
    limited = clone(FITTED).set_params(node_limit=3, decoder=decoder).fit(X, Y)
    assert not limited.predict_decoding(X).status.exact.all()
    with pytest.warns(ConvergenceWarning, match="node_limit=3 or max_candidates=64"):
        limited.predict(X)
    assert limited.set_params(node_limit=None).predict_decoding(X).status.exact.all()


def test_same_random_state_same_ensemble():
    again = clone(FITTED).fit(X, Y)
    for one, two in zip(again.members_, FITTED.members_, strict=True):
        np.testing.assert_array_equal(one.coef_, two.coef_)
        assert one.ordering_.tolist() == two.ordering_.tolist()
    other = clone(FITTED).set_params(random_state=1).fit(X, Y)
    assert [m.ordering_.tolist() for m in other.members_] != [m.ordering_.tolist() for m in again.members_]


def test_csr_weights_and_missing_labels_reach_the_members():
    labels = np.where(np.random.default_rng(0).random(Y.shape) < 0.1, np.nan, Y)
    weight = np.random.default_rng(1).random(60)
    ensemble = LMSBNEnsembleClassifier(BASE, num_members=2, random_state=0)
    ensemble.fit(sparse.csr_array(X), labels, sample_weight=weight)
    first = ensemble.members_[0]
    alone = clone(BASE).set_params(random_state=first.random_state).fit(X, labels, weight)
    np.testing.assert_allclose(first.coef_, alone.coef_, atol=0.02)
    assert ensemble.predict(sparse.csr_array(X)).shape == Y.shape


def test_classes_are_decoded_among_themselves():
    y = np.array(["a", "b", "c"])[np.digitize(X @ np.ones(4), [-0.7, 0.7])]
    ensemble = LMSBNEnsembleClassifier(LMSBNClassifier(10.0), num_members=3, random_state=0).fit(X, y)
    assert ensemble.score(X, y) > 0.7
    np.testing.assert_allclose(ensemble.predict_proba(X).sum(1), 1)


@pytest.mark.parametrize(
    ("error", "message", "settings"),
    [
        (ValueError, "'num_members' .* must be an int .* Got 0", {"num_members": 0}),
        (
            TypeError,
            "'base' .* must be an instance of .*LMSBNClassifier' or None. Got LabelPowersetSVM",
            {"base": LabelPowersetSVM()},
        ),
        (ValueError, "'decoder' .* must be a str among .* Got 'best'", {"decoder": "best", "num_members": 1}),
        (
            ValueError,
            "'solver' parameter of LMSBNClassifier must be",
            {"base": LMSBNClassifier(solver="sgd")},
        ),
        (ValueError, "'max_candidates' .* must be an int", {"max_candidates": 0, "num_members": 2}),
        (ValueError, "'node_limit' .* must be an int", {"node_limit": 0, "num_members": 2}),
    ],
)
def test_bad_settings_are_refused_by_name(error, message, settings):
    with pytest.raises(error, match=message):
        LMSBNEnsembleClassifier(**settings).fit(X, Y).predict(X)
