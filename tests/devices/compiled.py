"""What torch.compile makes of models and losses: ``python -m devices.compiled cpu NAME …`` tells of each.

A program of its own, because the checks of shapes that tests install cannot be compiled. On the CPU graphs
are traced alone (backend ``eager``), for a compiler takes minutes; on CUDA they are compiled and replayed as
CUDA graphs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from devices.steps import BATCH, NUM_FEATURES, STEPS, drawn
from lmbm_torch.models import ConditionalRBM, ConvolutionalEncoder, HiddenMarkov, RestrictedBoltzmannMachine
from lmbm_torch.models.hidden_markov import Bernoulli, Gaussian, Multinomial
from lmbm_torch.training.latent import PersistentModule

NUM_STATES, LENGTHS = 3, (5, 3, 1)
Function = Callable[..., Tensor]
Graph = tuple[torch.nn.Module, Function, tuple[Tensor, ...]]
"""A model, a function of tensors that it serves, and the tensors."""


def losses(name: str) -> Graph:
    """The losses of a step's batch."""
    module, batch = STEPS[name].module(), STEPS[name].batch

    def of_labels(features: Tensor, labels: Tensor) -> Tensor:
        energy = module.model(features)
        if isinstance(module, PersistentModule):
            return module.loss(energy, labels, labels)[0]
        return module.loss(energy, labels)

    return module.model, of_labels, (batch.features, batch.labels)


def scores(model: Any, x: Tensor, *rest: Any) -> Graph:
    """The scores of one labelling."""
    labels = torch.zeros(BATCH, max(LENGTHS) if rest else 6, dtype=torch.int64)
    return model, lambda x, labels, *rest: model(x, *rest).score(labels), (x, labels, *rest)


def images() -> Graph:
    encoder = ConvolutionalEncoder(4, 4, [2])
    return scores(ConditionalRBM(encoder.num_features, 6, 3, encoder=encoder).double(), drawn(BATCH, 16))


def hidden_markov(emission: type) -> Graph:
    bits = (drawn(sum(LENGTHS), NUM_FEATURES) > 0).double()
    return scores(
        HiddenMarkov(emission(NUM_STATES, NUM_FEATURES)).double(), bits, torch.tensor(LENGTHS), max(LENGTHS)
    )


def spoiled(name: str, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Graph:
    """The losses of another batch, and their own where they are traced."""
    model, function, (features, labels) = losses(name)
    return model, function, spoil(features, labels)


# The prediction of missing labels is a search.
GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: lambda name=name: losses(name) for name in STEPS if "missing" not in name},
    "machine of labels alone": lambda: scores(RestrictedBoltzmannMachine(6, 3).double(), drawn(BATCH, 0)),
    "images": images,
    "hidden Markov, bits": lambda: hidden_markov(Bernoulli),
    "hidden Markov, numbers": lambda: hidden_markov(Gaussian),
    "hidden Markov, counts": lambda: hidden_markov(Multinomial),
}
# What is refused, and by which words compiled code refuses it.
REFUSED: dict[str, tuple[Callable[[], Graph], str]] = {
    "labels": (
        lambda: spoiled("machine, hinge", lambda x, y: (x, y + 2)),
        "labels: expected 0 or 1",
    ),
    "log-potentials": (
        lambda: spoiled("machine, hinge", lambda x, y: (x * torch.nan, y)),
        "unary: expected finite values",
    ),
    "missing labels": (
        lambda: spoiled("network, hinge", lambda x, y: (x, y * torch.nan)),
        "labels: expected 0 or 1",
    ),
}


def on(device: str, graph: Graph) -> Graph:
    model, function, arguments = graph
    moved = [each.to(device) if isinstance(each, Tensor) else each for each in arguments]
    return model.to(device), function, tuple(moved)


def compiled(function: Function, device: str) -> Any:
    if device == "cpu":
        return torch.compile(function, fullgraph=True, backend="eager")
    # Numbers drawn as without a compiler.
    options = {"triton.cudagraphs": True, "fallback_random": True}
    return torch.compile(function, fullgraph=True, options=options)


def answers(graph: Graph, function: Function) -> list[Tensor]:
    """The function's values, and their sum's gradients."""
    model, _, tensors = graph
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    torch.manual_seed(0)
    # What a replayed graph returns is written over by its next replay.
    found = function(*tensors).clone()
    if not weights:
        return [found]
    return [found.detach(), *torch.autograd.grad(found.sum(), weights, materialize_grads=True)]


def is_right(name: str, device: str) -> str:
    """An empty text, or what is wrong with a graph; the third call replays the second's."""
    graph = on(device, GRAPHS[name]())
    fast = compiled(graph[1], device)
    for _ in range(1 if device == "cpu" else 3):
        for came, expected in zip(answers(graph, fast), answers(graph, graph[1]), strict=True):
            if device == "cuda" and name in STEPS and STEPS[name].is_random:
                # A replayed graph draws other numbers.
                assert came.shape == expected.shape
                assert came.isfinite().all()
            else:
                torch.testing.assert_close(came, expected, rtol=1e-9, atol=1e-9)
    return ""


def is_refused(name: str, device: str) -> str:
    """An empty text, or how a graph fails to refuse."""
    make, wanted = REFUSED[name]
    _, function, tensors = on(device, make())
    try:
        compiled(function, device)(*tensors)
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as error:
        return "" if str(error).startswith(wanted) else str(error)
    return "nothing was refused"


def main(device: str, *names: str) -> None:
    torch.set_num_threads(1)
    for name in names:
        torch._dynamo.reset()
        try:
            problem = is_refused(name, device) if name in REFUSED else is_right(name, device)
        except (RuntimeError, AssertionError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps([name, problem]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
