"""What the other files here check on a device that is only claimed, on a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.results import assert_same
from contracts.routines import rows_that
from scipy.sparse import csr_array
from sklearn.base import clone

from devices.accelerator import moved
from devices.ceilings import LOOPS
from devices.ceilings import STEPS as CEILINGS
from devices.compiled import GRAPHS, REFUSED
from devices.steps import STEPS, prepared, train
from devices.test_compiled import problems_of
from devices.test_device_costs import ITERATIONS
from devices.test_device_losses import LOSSES, labels_of, value_and_gradients
from devices.test_device_prediction import CHAINS, DATA, ESTIMATORS, answers, drawn, on
from devices.test_device_refusals import CALLS
from devices.test_device_routines import HAVE_NO_TENSORS
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.data.tensors import to_tensor
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


RUN = (
    "experiment=noisy_digits_mle_bp",
    "trainer=gpu",
    "trainer.max_epochs=1",
    "trainer.enable_progress_bar=false",
    "callbacks.progress_bar=null",
    "model.num_hidden=4",
    "data.batch_size=500",
)


def on_cuda(value):
    return moved(value, lambda tensor: tensor.detach().clone().cuda())


@rows_that(lambda row: row.kind not in HAVE_NO_TENSORS)
def test_routines(row):
    for case in row.few_cases():
        came = row(on_cuda(case.energy), on_cuda(case.known))
        assert {name for name, tensor in came.items() if not tensor.is_cuda} == set()
        if not row.is_random:
            apart = row.kind.rounded.union(row.incidental)
            on_host = {name: tensor.cpu() for name, tensor in came.items()}
            assert_same(on_host, case.result, apart=apart, rtol=1e-6, atol=1e-5 if row.limits else 1e-6)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name):
    loss = LOSSES[name]
    energy, labels = loss.kind.plain, labels_of(loss)
    came = value_and_gradients(loss, on_cuda(energy), on_cuda(labels))
    assert all(tensor.is_cuda for tensor in came)
    if not loss.is_random:
        atol = 1e-5 if "relaxed" in name else 1e-6
        for tensor, expected in zip(came, value_and_gradients(loss, energy, labels), strict=True):
            torch.testing.assert_close(tensor.cpu(), expected, rtol=1e-6, atol=atol)


def everything(step, device, put):
    """The loss of a step, the weights after it, and a prediction."""
    module, batch = prepared(step, device), put(step.batch)
    came = [train(module, batch), *(weight.detach() for weight in module.model.state_dict().values())]
    with torch.no_grad():
        module.validation_step(batch._replace(labels=batch.labels.nan_to_num()), 0)
        return [*came, module.predict_step(batch, 0)]


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    step = STEPS[name]
    came = everything(step, torch.device("cuda"), on_cuda)
    assert all(tensor.is_cuda for tensor in came)
    if not step.is_random:
        expected = everything(step, torch.device("cpu"), lambda batch: batch)
        for tensor, wanted in zip(came, expected, strict=True):
            torch.testing.assert_close(tensor.cpu(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_refusals_leave_the_device_alive(name):
    function, *arguments = CALLS[name]
    with pytest.raises(ValueError, match="expected") as on_host:
        function(*arguments)
    with pytest.raises(ValueError, match="expected") as came:
        function(*map(on_cuda, arguments))
    assert str(came.value) == str(on_host.value)
    torch.cuda.synchronize()


def waits(work):
    """Warnings of PyTorch that the host waits for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [
        f"{each.filename}:{each.lineno}" for each in caught if "called a synchronizing" in str(each.message)
    ]


@pytest.mark.parametrize("name", CEILINGS)
def test_a_step_waits_as_often_as_it_was_counted_to(name):
    module, batch = prepared(STEPS[name], torch.device("cuda")), on_cuda(STEPS[name].batch)
    train(module, batch)
    found = waits(lambda: train(module, batch))
    assert len(found) <= CEILINGS[name].waits, found


@pytest.mark.parametrize("name", LOOPS)
def test_iterations_wait_as_often_as_they_were_counted_to(name):
    loop = LOOPS[name]

    def of(iterations):
        energy = on_cuda(loop.energy(iterations))
        loop.call(energy, iterations)
        return waits(lambda: loop.call(energy, iterations))

    few, many = of(ITERATIONS), of(2 * ITERATIONS)
    assert (len(many) - len(few)) / ITERATIONS <= loop.cost.waits, many


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name):
    estimator, labels, methods = ESTIMATORS[name]
    on_host = answers(estimator.fit(DATA.train_features, labels), methods)
    came = answers(on("cuda", estimator).fit(DATA.train_features, labels), methods)
    for array, expected in zip(came, on_host, strict=True):
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_estimators_of_sequences(name):
    numbers = digit_numbers(12)
    train = replace(numbers, features=numbers.features.astype(np.float64)).within(0)
    on_host = clone(CHAINS[name]).fit(*train)
    came = on("cuda", CHAINS[name]).fit(*train)
    assert came.energy(train.features).device.type == "cuda"
    for found, expected in zip(came.predict(train.features), on_host.predict(train.features), strict=True):
        np.testing.assert_array_equal(found, expected)
    if hasattr(came, "predict_proba"):
        chances = [np.concatenate(each.predict_proba(train.features)) for each in (came, on_host)]
        np.testing.assert_allclose(*chances, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_graphs_are_replayed(name):
    assert problems_of(name, device="cuda")[name] == ""


@pytest.mark.parametrize("name", REFUSED)
def test_compiled_code_refuses_by_an_assertion_of_the_device(name):
    assert "CUDA error" in problems_of(name, device="cuda")[name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if not step.is_random])
def test_steps_under_autocast(name, dtype):
    step = STEPS[name]
    single = step._replace(batch=moved(step.batch, lambda t: t.float() if t.is_floating_point() else t))
    module = prepared(single, torch.device("cuda")).float()
    expected = module.training_step(on_cuda(single.batch), 0)
    with torch.autocast("cuda", dtype=dtype):
        came = module.training_step(on_cuda(single.batch), 0)
    came, expected = (each["loss"] if isinstance(each, dict) else each for each in (came, expected))
    came.backward()
    assert all(
        weight.grad.isfinite().all() for weight in module.model.parameters() if weight.grad is not None
    )
    torch.testing.assert_close(came.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("model", [SigmoidBeliefNetwork, BoltzmannMachine])
def test_sparse_features(model):
    features = DATA.features * (np.random.default_rng(0).random(DATA.features.shape) < 0.3)
    torch.manual_seed(0)
    on_device = drawn(model(DATA.num_features, DATA.num_labels)).double().cuda()
    labels = torch.ones(len(features), DATA.num_labels, device="cuda")
    came = on_device(to_tensor(csr_array(features)).cuda()).score(labels)
    torch.testing.assert_close(came, on_device(torch.as_tensor(features).cuda()).score(labels))


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["trainer.precision=bf16-mixed"],
        ["data.on_device=true"],
        ["data.num_workers=2", "data.pin_memory=true"],
    ],
    ids=lambda more: " ".join(more) or "plain",
)
def test_a_run_on_the_gpu(tmp_path, more):
    # In a process of its own: this one claims a second kind of device.
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "lmbm_torch.cli.train",
        *RUN,
        f"paths.run={tmp_path}/run",
    ]
    subprocess.run([*command, *more], check=True)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < metrics["test/changed_pixel_error"] < 1
