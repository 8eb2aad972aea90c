"""Labels that never or always occur, rows without a feature, and a thousand labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems.small import quiet_trainer, served, stop_at
from scipy.sparse import csr_array
from sweeps import slow

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.data.scaling import standardise, unit_norm, unscaled
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses import local_hinge
from lmbm_torch.metrics import multilabel_metrics
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.training.dual import DualModule
from lmbm_torch.training.gradient import GradientModule
from lmbm_torch.viz.dependencies import dependency_heatmap

NEVER, ALWAYS, EMPTY = 3, 4, 7
MANY = 1000
ESTIMATORS = {
    "network": LMSBNClassifier(random_state=0),
    "kernel": LMSBNClassifier(kernel="rbf", random_state=0),
    "ensemble": LMSBNEnsembleClassifier(num_members=2, random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "hidden": ConditionalRBMClassifier(random_state=0),
}


def odd_data(*, sparse: bool) -> MultilabelData:
    """60 instances: one label never occurs, one always, and one instance has no feature at all."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 5))
    labels = np.zeros((60, 5))
    labels[:, :3] = features @ generator.normal(size=(5, 3)) > 0
    labels[:, ALWAYS] = 1
    features[EMPTY] = 0
    stored = csr_array(features) if sparse else features
    names = numbered("label", 5), numbered("feature", 5)
    return MultilabelData("odd", stored, labels, *names, np.arange(50), np.arange(50, 60))


@pytest.mark.parametrize("sparse", [slow(False), True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_learns_what_never_and_what_always_occurs(name, sparse):
    data = odd_data(sparse=sparse)
    model = ESTIMATORS[name].fit(data.train_features, data.train_labels)
    predicted = model.predict(data.features)
    assert not predicted[:, NEVER].any()
    assert predicted[:, ALWAYS].all()
    assert (predicted == data.labels).mean() > 0.9
    if hasattr(model, "predict_proba"):
        assert np.isfinite(model.predict_proba(data.features)).all()


@pytest.mark.parametrize("scaling", [standardise, unit_norm, unscaled])
def test_a_row_without_a_feature_stays_finite(scaling):
    module = served(odd_data(sparse=scaling is not standardise), scaling=scaling)
    rows = module.train_set[EMPTY].features.to_dense()
    assert rows.isfinite().all()
    assert scaling is standardise or not rows.any()


@pytest.mark.parametrize("model", [SigmoidBeliefNetwork, BoltzmannMachine])
@pytest.mark.parametrize("route", ["dual", "gradient"])
def test_every_route_trains_on_them(tmp_path, model, route):
    data = served(odd_data(sparse=True), 25, scaling=unit_norm)
    head = model(5, 5).double() if model is BoltzmannMachine else model(5, 5, range(5)).double()
    if route == "dual":
        module, callbacks = DualModule(head, C=1.0, tol=1e-3), [stop_at(1e-3)]
    else:
        module = GradientModule(head, local_hinge, C=1.0, optimizer=torch.optim.Adam)
        callbacks = []
    trainer = quiet_trainer(tmp_path, 200 if route == "dual" else 2, *callbacks)
    trainer.fit(module, datamodule=data)
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    assert np.isfinite(module.fit_report["fit/objective"])
    assert 0 <= metrics["test/hamming_loss"] <= 1


def test_metrics_say_what_they_make_of_a_label_that_never_occurs():
    labels = torch.tensor([[1, 0], [0, 0]])
    metrics = multilabel_metrics(2)
    metrics.update(labels, labels)
    values = metrics.compute()
    assert values["exact_match"] == 1
    assert not values["micro_f1"].isnan()


@pytest.fixture(scope="module")
def many():
    """A thousand labels of ten features, some never seen."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 10))
    fields = features @ generator.normal(size=(10, MANY)) + generator.normal(size=(80, MANY))
    labels = (fields > 5).astype(float)
    assert (labels.sum(0) == 0).any()
    return features, labels


@pytest.mark.slow
def test_a_thousand_labels_are_learned_and_the_search_says_where_it_gave_up(many):
    features, labels = many
    settings = {"ordering": "index", "max_parents": None, "node_limit": 1500, "random_state": 0}
    model = LMSBNClassifier(1.0, **settings).fit(features, labels)
    assert model.duality_gap_ <= 1e-3
    decoding = model.decode(features[:20])
    assert (decoding.bound <= decoding.objective + 1e-9).all()
    proven = decoding.status.exact
    assert torch.equal(proven, decoding.bound >= decoding.objective - 1e-9)
    assert proven.any()
    assert (decoding.labels.numpy() == labels[:20]).mean() > 0.95


def test_a_thousand_labels_with_hidden_units(many):
    features, labels = many
    model = ConditionalRBMClassifier(1.0, max_iter=30, objective="mle_mf", random_state=0)
    model.fit(features, labels)
    assert model.loss_curve_[-1] < 0.6 * model.loss_curve_[0]
    assert model.predict(features[:3]).shape == (3, MANY)


def test_what_takes_two_to_the_thousand_steps_says_so():
    energy = DirectedEnergy(torch.zeros(1, MANY), torch.zeros(MANY, MANY), torch.arange(MANY))
    for ask in (exact.decode, exact.marginals, exact.log_partition):
        with pytest.raises(ValueError, match="1000"):
            ask(energy)


def test_a_thousand_labels_are_drawn_without_names():
    figure = dependency_heatmap(torch.zeros(MANY, MANY), numbered("label", MANY), range(MANY))
    assert len(figure.axes[0].get_yticks()) < 20
