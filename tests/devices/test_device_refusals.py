"""What is refused on the CPU is refused on a device, by the same words, before a kernel fails by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contracts.kinds import BIPARTITE, CHAIN, DIRECTED, PAIRWISE

from devices.accelerator import Accelerator
from lmbm_torch import losses
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.sampling import ancestral, annealed_importance, gibbs
from lmbm_torch.inference.trees import chain_dp


def spoiled(energy, name, value):
    tensor = getattr(energy, name).clone()
    tensor.view(-1)[1] = value
    return replace(energy, **{name: tensor})


def labels_of(kind, value, count=2):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, count, (3, kind.plain.num_labels), generator=generator)
    labels[1, 2] = value
    return labels


LATE_PARENT = replace(DIRECTED.plain, parents=DIRECTED.plain.parents.mT)
ONE_SIDED = replace(PAIRWISE.plain, pairwise=PAIRWISE.plain.pairwise.triu())
IMPOSSIBLE = replace(CHAIN.plain, transition=torch.full_like(CHAIN.plain.transition, -torch.inf))
NAN, HUGE = torch.nan, 1e30
CALLS = {
    "NaN in a hinge": (losses.local_hinge, spoiled(DIRECTED.plain, "unary", NAN), labels_of(DIRECTED, 1)),
    "a number that is no label": (losses.local_hinge, DIRECTED.plain, labels_of(DIRECTED, 2)),
    "a parent after its child": (losses.local_hinge, LATE_PARENT, labels_of(DIRECTED, 1)),
    "one-sided couplings": (losses.negative_pseudo_likelihood, ONE_SIDED, labels_of(PAIRWISE, 1)),
    "huge potentials": (exact.decode, spoiled(PAIRWISE.plain, "unary", HUGE)),
    "NaN in propagation": (matrix_bp.marginals, spoiled(BIPARTITE.plain, "coupling", NAN)),
    "NaN in draws": (gibbs.sample, spoiled(BIPARTITE.plain, "visible", NAN), 2),
    "NaN in draws from parents": (ancestral.sample, spoiled(DIRECTED.plain, "unary", NAN), 2),
    "NaN in annealed draws": (annealed_importance.estimate, spoiled(BIPARTITE.plain, "hidden", NAN)),
    "a number that is no label, contrasted": (
        losses.contrastive_divergence,
        BIPARTITE.plain,
        labels_of(BIPARTITE, 3),
    ),
    "a number that is no state": (losses.chain_negative_log_likelihood, CHAIN.plain, labels_of(CHAIN, 99)),
    "a number that is no state, in a hinge": (
        losses.chain_structured_hinge,
        CHAIN.plain,
        labels_of(CHAIN, 99),
    ),
    "chains of which nothing is allowed": (chain_dp.log_partition, IMPOSSIBLE),
}


@pytest.mark.parametrize("name", CALLS)
def test_refusals(name):
    function, *arguments = CALLS[name]
    with pytest.raises(ValueError, match="expected") as on_host:
        function(*arguments)
    with Accelerator() as gpu, pytest.raises(ValueError, match="expected") as came:
        function(*(gpu.put(each) for each in arguments))
    assert str(came.value) == str(on_host.value)
    # Nothing else failed first: a device would not have survived that.
    assert came.value.__context__ is None
