"""Joint decoding of several networks against enumeration of their mixture."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.directed import COUPLINGS, random_directed_energy, random_known, random_labels
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.search import branch_and_bound, mixture


@dataclass(frozen=True)
class Ensemble:
    """Networks over the same labels, and what is known of them."""

    members: list[DirectedEnergy]
    known: Tensor | None

    def values(self, margin: float | None) -> tuple[Tensor, Tensor]:
        """All labellings, (labellings, labels), and the mixture's value of each that agrees with ``known``.

        The value is the log-probability or, with a margin, minus the hinge loss: larger is better.
        """
        first = self.members[0]
        labellings = torch.tensor(list(itertools.product([0, 1], repeat=first.num_labels)))
        labels = labellings[:, None].expand(-1, first.batch_size, -1)
        if margin is None:
            each = torch.stack([member.log_prob(labels) for member in self.members])
            value = each.exp().mean(0).log()
        else:
            margins = torch.stack([member.local_margins(labels) for member in self.members])
            value = -(margin - margins).clamp(min=0).sum(-1).mean(0)
        if self.known is not None:
            agrees = self.known.isnan() | (labels == self.known)
            value = value.masked_fill(~agrees.all(-1), -torch.inf)
        return labellings, value


@st.composite
def ensembles(draw: st.DrawFn, resolution: float | None = None, max_labels: int = 8) -> Ensemble:
    """1 to 4 members in their own orderings, from no dependence to saturation, some labels known or none."""
    num_labels = draw(st.integers(1, max_labels))
    batch_size = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    members = [
        random_directed_energy(
            seed + member,
            num_labels,
            batch_size,
            coupling=draw(st.sampled_from(COUPLINGS)),
            num_cliques=draw(st.integers(0, 2)),
            resolution=resolution,
        )
        for member in range(draw(st.integers(1, 4)))
    ]
    share = draw(st.sampled_from((None, 0.0, 0.4, 1.0)))
    return Ensemble(members, None if share is None else random_known(seed, members[0], share))


def check(found: Decoding, ensemble: Ensemble, margin: float | None) -> None:
    """The objective is that of the labels, the bound is a bound, and a certificate certifies the optimum."""
    sign = 1 if margin is None else -1
    objective, bound = sign * found.objective, sign * found.bound
    labellings, values = ensemble.values(margin)
    at = (labellings[:, None] == found.labels).all(-1).int().argmax(0)
    torch.testing.assert_close(objective, values.gather(0, at[None])[0], rtol=1e-9, atol=1e-9)
    best = values.max(0).values
    assert (bound >= objective).all()
    assert (bound >= best - 1e-9).all()
    torch.testing.assert_close(objective[found.status.exact], best[found.status.exact], rtol=1e-9, atol=1e-9)
    assert (found.status.exact == (found.bound == found.objective)).all()
    assert (found.status.converged == found.status.exact).all()
    torch.testing.assert_close(found.status.residual, bound - objective)


@given(ensemble=ensembles(), margin=st.sampled_from((0.5, 1.0, 4.0)))
def test_decode_hinge_finds_the_least_mean_loss(ensemble, margin):
    found = mixture.decode_hinge(ensemble.members, margin, known=ensemble.known, max_candidates=256)
    check(found, ensemble, margin)
    assert found.status.exact.all()


@given(ensemble=ensembles())
def test_decode_finds_the_most_probable_labelling(ensemble):
    found = mixture.decode(ensemble.members, known=ensemble.known, max_candidates=256)
    check(found, ensemble, None)
    assert found.status.exact.all()


@given(ensemble=ensembles(), top_k=st.integers(2, 9), hinge=st.booleans())
def test_several_labellings_are_the_best_and_differ(ensemble, top_k, hinge):
    labellings, values = ensemble.values(1.0 if hinge else None)
    top_k = min(top_k, int(values.isfinite().sum(0).min()))
    sign, decode = (-1, mixture.decode_hinge) if hinge else (1, mixture.decode)
    found = decode(ensemble.members, known=ensemble.known, top_k=top_k, max_candidates=256)
    objective = sign * found.objective.reshape(len(found.labels), top_k)
    best = values.topk(top_k, 0).values.mT
    torch.testing.assert_close(objective, best, rtol=1e-9, atol=1e-9)
    assert found.status.exact.all()
    torch.testing.assert_close(sign * found.bound, objective[:, -1])
    for row, labels in enumerate(found.labels.reshape(len(objective), top_k, -1)):
        assert len(labels.unique(dim=0)) == top_k
        at = (labellings == labels[:, None]).all(-1).int().argmax(1)
        torch.testing.assert_close(values[at, row], objective[row], rtol=1e-9, atol=1e-9)


def test_few_candidates_bound_what_several_labellings_leave_out():
    found = mixture.decode_hinge(quarrelling_members(), top_k=3, max_candidates=3)
    assert not found.status.exact.any()
    assert (found.bound <= found.objective[:, -1]).all()
    with pytest.raises(ValueError, match=r"^max_candidates: expected at least top_k = 3, got 2"):
        mixture.decode_hinge(quarrelling_members(), top_k=3, max_candidates=2)


@given(ensemble=ensembles(resolution=0.5))
def test_ties_are_decoded_to_one_of_the_best(ensemble):
    hinge = mixture.decode_hinge(ensemble.members, known=ensemble.known, max_candidates=256)
    check(hinge, ensemble, 1.0)
    log_prob = mixture.decode(ensemble.members, known=ensemble.known, max_candidates=256)
    check(log_prob, ensemble, None)
    assert hinge.status.exact.all()
    assert log_prob.status.exact.all()


@given(ensemble=ensembles(), max_candidates=st.integers(1, 9))
def test_search_given_up_early_says_so_truthfully(ensemble, max_candidates):
    check(
        mixture.decode_hinge(ensemble.members, known=ensemble.known, max_candidates=max_candidates),
        ensemble,
        1.0,
    )
    check(
        mixture.decode(ensemble.members, known=ensemble.known, max_candidates=max_candidates), ensemble, None
    )


@given(ensemble=ensembles(), node_limit=st.integers(1, 40))
def test_searches_ended_by_their_limit_say_so_truthfully(ensemble, node_limit):
    limits = {"max_candidates": 256, "node_limit": node_limit}
    check(mixture.decode_hinge(ensemble.members, known=ensemble.known, **limits), ensemble, 1.0)
    check(mixture.decode(ensemble.members, known=ensemble.known, **limits), ensemble, None)


@pytest.mark.parametrize("decode", [mixture.decode, mixture.decode_hinge])
def test_a_thousand_labels_end_at_the_limit(decode):
    generator, count = torch.Generator().manual_seed(0), 1100
    unary, weight = (torch.randn(size, count, generator=generator) for size in (2, count))
    energy = DirectedEnergy(unary, (weight / count**0.5).tril(-1), torch.arange(count))
    found = decode([energy, replace(energy, unary=unary.flip(0))], node_limit=2000)
    assert not found.status.exact.any()
    assert (found.nodes == 4000).all()
    assert (found.bound != found.objective).all()


def quarrelling_members() -> list[DirectedEnergy]:
    """Two networks that are sure of opposite labels: no labelling is good for both."""
    energy = random_directed_energy(0, 8, coupling=0.0)
    unary = energy.unary.sign() * 5
    return [replace(energy, unary=unary), replace(energy, unary=-unary)]


def test_too_few_candidates_prove_nothing():
    members = quarrelling_members()
    early = mixture.decode_hinge(members, max_candidates=1)
    assert not early.status.exact.any()
    assert (early.status.num_iters == 0).all()
    late = mixture.decode_hinge(members, max_candidates=256)
    assert late.status.exact.all()
    assert (late.status.num_iters >= 3).all()
    assert (late.nodes > early.nodes).all()


def test_one_member_decodes_as_itself():
    energy = random_directed_energy(3, 6, 5)
    for mixed, alone in (
        (mixture.decode([energy]), branch_and_bound.decode(energy)),
        (mixture.decode_hinge([energy], 2.0), branch_and_bound.decode_hinge(energy, 2.0)),
    ):
        torch.testing.assert_close(mixed.labels, alone.labels)
        torch.testing.assert_close(mixed.objective, alone.objective)
        assert mixed.status.exact.all()
        assert (mixed.status.num_iters == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decode", [mixture.decode, mixture.decode_hinge])
def test_members_that_agree_are_proven_right_at_once(decode, dtype):
    members = [random_directed_energy(seed, 8, 50, coupling=0.1, dtype=dtype) for seed in range(3)]
    members = [replace(member, unary=members[0].unary * (1 + e)) for e, member in enumerate(members)]
    alone = torch.stack([decode([member]).labels for member in members])
    agree = (alone == alone[0]).all(-1).all(0)
    assert 10 < int(agree.sum()) < 50
    found = decode(members)
    assert found.status.exact[agree].all()
    assert (found.status.num_iters[agree] == 0).all()
    torch.testing.assert_close(found.labels[agree], alone[0][agree])


def test_log_prob_is_that_of_the_mixture():
    ensemble = Ensemble([random_directed_energy(seed, 4, 3) for seed in range(3)], None)
    labellings, values = ensemble.values(None)
    labels = labellings[:, None].expand(-1, 3, -1)
    torch.testing.assert_close(mixture.log_prob(ensemble.members, labels), values)
    torch.testing.assert_close(values.exp().sum(0), torch.ones(3, dtype=torch.float64))
    one = random_labels(0, ensemble.members[0])
    assert mixture.log_prob(ensemble.members, one).shape == (3,)


def test_examples_do_not_influence_each_other():
    members = [random_directed_energy(seed, 6, 8) for seed in range(3)]
    together = mixture.decode_hinge(members, max_candidates=64)
    for row in range(8):
        alone = mixture.decode_hinge(
            [energy.select(slice(row, row + 1)) for energy in members], max_candidates=64
        )
        torch.testing.assert_close(alone.labels[0], together.labels[row])
        torch.testing.assert_close(alone.nodes[0], together.nodes[row])


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("decode", [mixture.decode, mixture.decode_hinge])
def test_bad_input_is_refused_by_name(decode):
    energy = random_directed_energy(0, 3)
    strange = replace(energy, unary=energy.unary * torch.nan)
    refusals = {
        "energies: expected at least one": lambda: decode([]),
        r"energies\[1\].unary: expected shape": lambda: decode([energy, random_directed_energy(0, 4)]),
        r"energies\[1\].unary: expected torch.float64": lambda: decode(
            [energy, random_directed_energy(0, 3, dtype=torch.float32)]
        ),
        "max_candidates: expected an integer": lambda: decode([energy], max_candidates=0),
        "unary: expected finite": lambda: decode([energy, strange]),
        # More rows than examples, of which the first would do.
        r"known: expected shape \(3, 3\), got \(5, 3\)": lambda: decode([energy], known=torch.zeros(5, 3)),
        "known: expected 0, 1 or NaN": lambda: decode([energy], known=torch.full((3, 3), 0.5)),
    }
    for message, call in refusals.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="margin: expected a finite number above 0"):
        mixture.decode_hinge([energy], 0.0)


@given(ensemble=ensembles(max_labels=6))
def test_marginals_are_those_of_the_mixture_given_what_is_known(ensemble):
    labellings, values = ensemble.values(None)
    joint = values.exp()
    found = mixture.marginals(ensemble.members, known=ensemble.known, mass_left=0.0, max_labellings=64)
    mass = joint.sum(0)
    # Of what all members find impossible there is no distribution.
    rows = mass > 1e-200
    expected = torch.einsum("yb,yi->bi", joint, labellings.double())[rows] / mass[rows, None]
    torch.testing.assert_close(found.states[rows][..., 1], expected, rtol=0, atol=1e-8)
