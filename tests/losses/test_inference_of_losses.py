"""Every loss runs by every routine that its docstring names, and by no routine that has no gradient."""

from __future__ import annotations

import importlib
import re
from inspect import Parameter, getdoc, signature

import pytest
import torch
from strategies.bipartite import random_bipartite_energy
from strategies.pairwise import labels_of, random_pairwise_energy

from lmbm_torch import losses
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import mean_field
from lmbm_torch.losses import relaxed
from lmbm_torch.losses.structured import loss_augment

RELAXED = ("relaxed_hamming", "relaxed_squared_error", "relaxed_structured_hinge", "sparse_map_loss")
EVERY = {name: getattr(losses, name) for name in losses.__all__} | {
    name: getattr(relaxed, name) for name in RELAXED
}
INFERRING = {name: loss for name, loss in EVERY.items() if "inference" in signature(loss).parameters}
LABELS = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 1, 0, 0]])


def named(loss) -> list[str]:
    """The routines after "inference:" in the loss's docstring."""
    entry = re.search(r"^    inference: (.*?)(?=^    \w+: |^\w|\Z)", getdoc(loss) or "", re.M | re.S)
    if entry is None:
        assert loss is relaxed.relaxed_squared_error
        return named(relaxed.relaxed_hamming)
    found = re.findall(r":func:`~?(lmbm_torch\.inference\.[\w.]+)`", entry[1])
    default = signature(loss).parameters["inference"].default
    own = [f"{default.__module__}.{default.__qualname__}"] if default not in (None, Parameter.empty) else []
    return [*dict.fromkeys(own + found)]


def routine_of(path: str):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


CASES = [
    pytest.param(loss, path, id=f"{name}, {path}") for name, loss in INFERRING.items() for path in named(loss)
]


# cvxpylayers reads tensors as NumPy 1 did.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("loss", "path"), CASES)
def test_a_loss_runs_by_what_its_docstring_names(loss, path):
    routine = routine_of(path)
    if loss.__module__.rsplit(".", 1)[1] in ("structured", "relaxed"):
        energy = random_pairwise_energy(0, 5)
        weights, labellings = energy.unary, [labels_of(1, energy)]
    else:
        energy = random_bipartite_energy(0, 5, 4, coupling=0.3)
        missing = LABELS.double()
        missing[0, 2] = torch.nan
        weights, labellings = energy.visible, [LABELS, missing]
    weights.requires_grad_()
    for labels in labellings:
        found = loss(energy, labels, inference=routine)
        assert found.shape == (3,)
        (gradient,) = torch.autograd.grad(found.sum(), weights)
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_each_loss_names_a_routine_or_takes_none():
    unused = {"contrastive_divergence", "contrastive_perceptron"}
    assert {name for name, loss in INFERRING.items() if not named(loss)} == unused


@pytest.mark.parametrize("seed", range(5))
def test_the_joint_hinge_of_a_greedy_search_is_that_of_the_labels_it_finds(seed):
    energy = random_bipartite_energy(seed, 5, 4, coupling=2.0)
    greedy = losses.joint_structured_hinge(energy, LABELS, inference=routine_of(GREEDY))
    by_enumeration = losses.joint_structured_hinge(energy, LABELS, inference=exact.decode)
    assert (greedy <= by_enumeration + 1e-12).all()
    augmented = loss_augment(energy, LABELS)
    found = routine_of(GREEDY)(augmented)
    observed = augmented.score(LABELS, exact.decode(augmented, known=LABELS.double()).hidden)
    torch.testing.assert_close(greedy, found.objective - observed)


GREEDY = "lmbm_torch.inference.messages.conditional_modes.decode"


@pytest.mark.parametrize("routine", [mean_field.marginals, exact.marginals])
def test_a_likelihood_by_beliefs_refuses_a_log_partition_without_gradient(routine):
    energy = random_bipartite_energy(0, 5, 4)
    assert losses.bethe_negative_log_likelihood(energy, LABELS, inference=routine).isfinite().all()
    energy.coupling.requires_grad_()
    with pytest.raises(ValueError, match=r"^inference: expected a routine whose log_partition has"):
        losses.bethe_negative_log_likelihood(energy, LABELS, inference=routine)
