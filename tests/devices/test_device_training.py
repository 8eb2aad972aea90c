"""Models and the modules that train them on a device: training, validation and prediction."""

from __future__ import annotations

import pytest
import torch

from devices.accelerator import Accelerator, OnDevice, here, DEVICE
from devices.steps import STEPS, prepared, train


def weights_of(module):
    return [weight.detach() for weight in module.model.state_dict().values()]


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    step = STEPS[name]
    on_host = prepared(step, torch.device("cpu"))
    expected = [train(on_host, step.batch), *weights_of(on_host)]
    with Accelerator() as gpu:
        module = prepared(step, DEVICE)
        came = [train(module, gpu.put(step.batch)), *weights_of(module)]
        with torch.no_grad():
            # Metrics need every label.
            module.validation_step(gpu.put(step.batch._replace(labels=step.batch.labels.nan_to_num())), 0)
            came.append(module.predict_step(gpu.put(step.batch), 0))
    expected.append(on_host.predict_step(step.batch, 0))
    assert gpu.violations == []
    assert all(isinstance(tensor, OnDevice) for tensor in came)
    if not step.is_random:
        for tensor, wanted in zip(here(came), expected, strict=True):
            torch.testing.assert_close(tensor, wanted, rtol=1e-6, atol=1e-6)
