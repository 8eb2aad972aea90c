"""Why a saved model answers as it does: parts that sum to its fields, and the decoder's other answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from lmbm_torch.data.scaling import Scaling, standardise, unit_norm
from lmbm_torch.models import (
    BoltzmannMachine,
    ConvolutionalEncoder,
    RestrictedBoltzmannMachine,
    SigmoidBeliefNetwork,
)
from lmbm_torch.prediction.predictor import Predictor

NAMES = ("sun", "sea", "sand")
ROWS = np.random.default_rng(0).normal(2.0, 3.0, size=(5, 4))
MODELS = {
    "network": SigmoidBeliefNetwork(4, 3, (2, 0, 1)),
    "machine": BoltzmannMachine(4, 3),
    "machine without bias": BoltzmannMachine(4, 3, bias=False),
}


SCALINGS = {"none": None, "standardised": standardise(ROWS), "unit rows": unit_norm(ROWS)}


def saved(model, scaling: Scaling | None) -> Predictor:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.double().parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return Predictor.of_model(model.eval(), NAMES, scaling=scaling)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_parts_sum_to_the_fields_of_the_answer(model, scaling, form):
    if form is csr_array and scaling is not None and scaling.mean.any():
        pytest.skip("sparse rows are not centred")
    trained, row = saved(model, scaling), form(ROWS[1:2])
    (energy,), decoding = trained.answer(row)
    fields = energy.local_fields(decoding.labels)[0]
    found = trained.explanation(row)
    for place, (name, each) in enumerate(found.items()):
        assert name == NAMES[place]
        assert each.value == decoding.labels[0, place]
        assert each.field == pytest.approx(float(fields[place]))
        parts = each.intercept + sum(each.features.values()) + sum(each.labels.values())
        assert parts == pytest.approx(each.field)
        known = torch.full((1, 3), torch.nan, dtype=torch.float64)
        known[0, place] = 1 - each.value
        other = trained.deciding(known=known)(energy)
        changed = dict(zip(NAMES, other.labels[0].tolist(), strict=True))
        del changed[name]
        assert each.otherwise == {key: it for key, it in changed.items() if it != found[key].value}
    assert set(found.by_feature) == {f"feature_{place}" for place in range(4)}


def test_what_is_not_linear_or_takes_no_known_labels_has_no_reason():
    encoder = ConvolutionalEncoder(2, 2, [2])
    encoded = SigmoidBeliefNetwork(encoder.num_features, 3, (0, 1, 2), encoder=encoder)
    triples = BoltzmannMachine(4, 3, cliques=[(0, 1, 2)])
    for model in (encoded, triples, RestrictedBoltzmannMachine(4, 2)):
        assert saved(model, None).explanation(ROWS[:1]) is None
    machine = saved(MODELS["machine"], None)
    own = replace(machine, estimator=replace(machine.estimator, decoder=lambda energy: None))
    assert own.explanation(ROWS[:1]) is None
