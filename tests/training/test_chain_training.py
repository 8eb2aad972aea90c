"""Chains by gradients in Lightning reach the optima that their own solvers certify."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from problems.small import quiet_trainer
from scipy import sparse
from sweeps import slow

from lmbm_torch.data.batches import SequenceDataset, in_order, shuffled
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.estimators import ChainCRF, ChainSVM
from lmbm_torch.losses import chain_negative_log_likelihood, chain_structured_hinge
from lmbm_torch.models import LinearChain, MaximumEntropyMarkov
from lmbm_torch.training.chains import ChainModule

C = 0.3
EPOCHS = 200


def decaying(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def module(loss, model=None, **options):
    model = LinearChain(64, 10) if model is None else model
    options = {"C": C, "optimizer": partial(torch.optim.Adam, lr=0.03), "scheduler": decaying, **options}
    return ChainModule(model.double(), loss, **options)


@pytest.fixture(scope="module")
def numbers():
    data = digit_numbers(40)
    return replace(data, features=data.features.astype(np.float64))


@pytest.mark.parametrize(
    ("loss", "solved"),
    [
        slow(chain_negative_log_likelihood, ChainCRF(C, tol=1e-5)),
        slow(chain_structured_hinge, ChainSVM(C, tol=1e-4, random_state=0)),
    ],
    ids=["likelihood", "hinge"],
)
def test_gradients_reach_the_solvers_optimum(tmp_path, numbers, loss, solved):
    trained = module(loss)
    trainer = quiet_trainer(tmp_path, EPOCHS, check_val_every_n_epoch=EPOCHS)
    test = in_order(SequenceDataset(numbers, [1]), 30)
    trainer.fit(trained, shuffled(SequenceDataset(numbers, [0]), 10, seed=0), test)
    decoded_at_the_end = trainer.callback_metrics["val/accuracy"]
    solved.fit(*numbers.within(0))
    optimum = solved.objective_
    assert optimum * (1 - 1e-4) <= trained.fit_report["fit/objective"] <= optimum * 1.01
    found = trainer.test(trained, test, verbose=False)[0]
    assert found["test/accuracy"] == float(decoded_at_the_end)
    assert found["test/accuracy"] == pytest.approx(solved.score(*numbers.within(1)), abs=0.02)
    assert 0 < found["test/sequence_accuracy"] <= found["test/accuracy"]
    predicted = trainer.predict(trained, test)
    batch_labels = [batch.labels for batch in test]
    assert [states.shape for states in predicted] == [labels.shape for labels in batch_labels]
    right = sum(int(((a == b) & (b >= 0)).sum()) for a, b in zip(predicted, batch_labels, strict=True))
    counted = sum(int((labels >= 0).sum()) for labels in batch_labels)
    assert found["test/accuracy"] == pytest.approx(right / counted)


def test_sparse_batches_and_encoders_are_trained_too(tmp_path, numbers):
    data = replace(numbers, features=sparse.csr_array(numbers.features))
    losses = []
    for source, model in (
        (numbers, LinearChain(8, 10, True, torch.nn.Linear(64, 8))),
        (data, MaximumEntropyMarkov(64, 10)),
    ):
        trained = module(chain_negative_log_likelihood, model, optimizer=partial(torch.optim.Adam, lr=0.01))
        train, test = SequenceDataset(source, [0]), SequenceDataset(source, [1])
        reached = []
        for epochs in (1, 20):
            trainer = quiet_trainer(tmp_path, epochs, check_val_every_n_epoch=epochs)
            trainer.fit(trained, shuffled(train, 10, seed=0), in_order(test, 30))
            reached.append(trained.fit_report["fit/objective"])
        losses.append(reached)
    for before, after in losses:
        assert after < 0.8 * before
    groups = module(chain_negative_log_likelihood, LinearChain(8, 10, False, torch.nn.Linear(64, 8)))
    optimizer = groups.configure_optimizers()[0][0]
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 2]


def test_refusals():
    with pytest.raises(ValueError, match=r"^C: expected"):
        module(chain_structured_hinge, C=0.0)
