"""Models with their losses under ``torch.compile(fullgraph=True)``: nothing is read on the way, nothing let through.

Traced alone (backend ``eager``): what a compiler makes of the graph is torch's own affair, and takes minutes.
"""

from __future__ import annotations

import pytest
import torch
from devices.steps import BATCH, LENGTHS, NUM_FEATURES, NUM_STATES, STEPS, drawn
from sweeps import slow

from lmbm_torch.data.batches import Batch
from lmbm_torch.models import (
    Bernoulli,
    ConditionalRBM,
    ConvolutionalEncoder,
    Gaussian,
    HiddenMarkov,
    Multinomial,
    RestrictedBoltzmannMachine,
)
from lmbm_torch.training.latent import PersistentModule

# Each takes seconds to trace: an enumeration, iterations of inference one after another.
LONG = ("hidden units, mle_bp", "hidden units, mle_mf", "machine, exact likelihood")
# The prediction of missing labels is a search.
NAMES = [slow(name) if name in LONG else name for name in STEPS if "missing" not in name]


def traced(name, backend="eager"):
    """The losses of the step, as a function of features and labels; and traced."""
    module, batch = STEPS[name].module(), STEPS[name].batch

    def losses(features, labels):
        if not isinstance(batch, Batch):
            return module.loss(module.model(features, batch.lengths, labels.shape[1]), labels)
        energy = module.model(features)
        if isinstance(module, PersistentModule):
            return module.loss(energy, labels, labels)[0]
        return module.loss(energy, labels)

    torch._dynamo.reset()
    return module.model, losses, torch.compile(losses, fullgraph=True, backend=backend)


def gradients(model, losses, batch):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    torch.manual_seed(0)
    found = losses(batch.features, batch.labels)
    return [found.detach(), *torch.autograd.grad(found.sum(), weights, materialize_grads=True)]


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_one_graph(name):
    model, losses, compiled = traced(name)
    batch = STEPS[name].batch
    expected, came = gradients(model, losses, batch), gradients(model, compiled, batch)
    for one, other in zip(came, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def images():
    encoder = ConvolutionalEncoder(4, 4, [2])
    return ConditionalRBM(encoder.num_features, 6, 3, encoder=encoder).double(), drawn(BATCH, 16)


def hidden_markov(emission):
    bits = (drawn(sum(LENGTHS), NUM_FEATURES) > 0).double()
    return lambda: (HiddenMarkov(emission(NUM_STATES, NUM_FEATURES)).double(), bits)


# Those that no module of STEPS trains, or not by gradients.
OTHERS = {
    "machine of labels alone": lambda: (RestrictedBoltzmannMachine(6, 3).double(), drawn(BATCH, 0)),
    "images": images,
    **{f"hidden Markov, {each.__name__}": hidden_markov(each) for each in (Bernoulli, Gaussian, Multinomial)},
}


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", OTHERS)
def test_scores_of_other_models_are_one_graph(name):
    model, x = OTHERS[name]()
    rest = (torch.tensor(LENGTHS),) if isinstance(model, HiddenMarkov) else ()
    labels = torch.zeros(BATCH, max(LENGTHS) if rest else 6, dtype=torch.int64)

    def scores(x, *rest):
        lengths = (*rest, max(LENGTHS)) if rest else ()
        return model(x, *lengths).score(labels)

    torch._dynamo.reset()
    compiled = torch.compile(scores, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, *rest), scores(x, *rest))


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("machine, hinge", lambda x, y: (x, y + 2), "labels: expected 0 or 1"),
        ("machine, hinge", lambda x, y: (x * torch.nan, y), "unary: expected finite values"),
        ("network, hinge", lambda x, y: (x, y * torch.nan), "labels: expected 0 or 1"),
    ],
)
def test_what_is_refused_is_refused_in_compiled_code(name, spoil, message):
    model, _, compiled = traced(name)
    batch = STEPS[name].batch
    with pytest.raises(RuntimeError, match=message):
        compiled(*spoil(batch.features, batch.labels))
