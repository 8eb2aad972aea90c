"""ChainEnergy against plain numbers, what it makes of padding, its conversion, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.chain import chain_energies, labellings, random_chain_energy
from strategies.pairwise import all_labellings, random_pairwise_energy

from lmbm_torch.energies import ChainEnergy, PairwiseEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.trees import chain_dp, chain_steps
from lmbm_torch.losses import chain_negative_log_likelihood
from lmbm_torch.models import HiddenMarkov
from lmbm_torch.models.hidden_markov import Gaussian


@given(chain_energies())
def test_score_equals_plain_sums(energy):
    for example in range(energy.batch_size):
        labels, scores = labellings(energy, example)
        alone = energy.select(slice(example, example + 1))
        torch.testing.assert_close(alone.score(labels[:, None])[:, 0], scores)
        torch.testing.assert_close(alone.energy(labels[:, None])[:, 0], -scores)


@pytest.mark.parametrize("per_step", [False, True])
def test_padding_never_matters(per_step):
    energy = random_chain_energy(0, per_step=per_step)
    outside = ~energy.inside
    labels = torch.randint(3, energy.inside.shape, generator=torch.Generator().manual_seed(0))
    score = energy.score(labels)
    assert outside.any()
    assert score.isfinite().all()
    for padding in (PADDING, 0, 7):
        assert torch.equal(energy.score(labels.masked_fill(outside, padding)), score)
    learnt = replace(energy, unary=energy.unary.clone().requires_grad_())
    learnt.score(labels).sum().backward()
    one_hot = torch.nn.functional.one_hot(labels, 3) * energy.inside[..., None]
    torch.testing.assert_close(learnt.unary.grad, one_hot.to(energy.dtype))
    energy.check_values()


def test_leading_axes_are_samples_that_share_the_batch():
    energy = random_chain_energy(1, per_step=True)
    labels = torch.randint(3, (2, 5, *energy.inside.shape), generator=torch.Generator().manual_seed(0))
    scores = energy.score(labels)
    assert scores.shape == (2, 5, 4)
    torch.testing.assert_close(scores[1, 3], energy.score(labels[1, 3]))
    torch.testing.assert_close(energy.score(labels[0, 0, :1]), energy.score(labels[0, 0, :1].expand(4, -1)))


def test_what_is_forbidden_scores_minus_infinity():
    transition = torch.tensor([[0.0, -torch.inf], [1.0, 2.0]])
    energy = ChainEnergy(torch.zeros(1, 3, 2), transition)
    assert energy.lengths.tolist() == [3]
    assert energy.score(torch.tensor([[[0, 0, 1]], [[1, 1, 0]]])).tolist() == [[-torch.inf], [3.0]]


@pytest.mark.parametrize("rows", [1, 4])
def test_added_unaries_add_to_the_score(rows):
    energy = random_chain_energy(2)
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(rows, 5, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (4, 5), generator=generator)
    expected = (unary.expand(4, -1, -1).gather(2, labels[..., None])[..., 0] * energy.inside).sum(1)
    torch.testing.assert_close(energy.add_unary(unary).score(labels), energy.score(labels) + expected)


@given(chain_energies())
def test_locally_normalised_scores_are_log_probabilities(energy):
    local = energy.locally_normalised()
    assert torch.equal(local.lengths, energy.lengths)
    for example in range(energy.batch_size):
        _, scores = labellings(local, example)
        torch.testing.assert_close(
            scores.logsumexp(0), torch.tensor(0.0, dtype=torch.float64), atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("per_step", [False, True])
def test_locally_normalised_conditionals_are_softmaxes(per_step):
    energy = random_chain_energy(3, per_step=per_step)
    unary, transition = energy.unary.clone().requires_grad_(), energy.transition.clone().requires_grad_()
    local = replace(energy, unary=unary, transition=transition).locally_normalised()
    torch.testing.assert_close(local.unary[:, 0].exp(), energy.unary[:, 0].softmax(-1))
    steps = energy.transition if per_step else energy.transition.expand(4, 4, 3, 3)
    expected = (steps + energy.unary[:, 1:, None]).softmax(-1)
    later = energy.inside[:, 1:]
    torch.testing.assert_close(local.transition[later].exp(), expected[later])
    local.score(torch.zeros(4, 5, dtype=torch.int64)).sum().backward()
    assert unary.grad.isfinite().all()
    assert transition.grad.isfinite().all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
def test_a_boltzmann_machine_along_a_path_scores_the_same(seed, num_labels, per_example):
    path = torch.randperm(num_labels, generator=torch.Generator().manual_seed(seed))
    place = torch.argsort(path)
    dense = random_pairwise_energy(seed, num_labels, per_example=per_example)
    on_path = (place[:, None] - place).abs() == 1
    energy = PairwiseEnergy(dense.unary, dense.pairwise * on_path, dense.constant)
    labels = all_labellings(num_labels)
    for order in (path, path.tolist()):
        chain = ChainEnergy.from_pairwise(energy, order)
        torch.testing.assert_close(chain.score(labels[..., path]), energy.score(labels))


def test_a_path_is_refused_that_misses_couplings():
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^path: expected couplings only between neighbours"):
        ChainEnergy.from_pairwise(energy, [0, 1, 2])
    with pytest.raises(ValueError, match=r"^path: expected a permutation"):
        ChainEnergy.from_pairwise(energy, [0, 1, 1])


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("unary", {"unary": torch.zeros(2, 3)}),
        ("unary", {"unary": torch.zeros(2, 0, 2)}),
        ("unary", {"unary": torch.zeros(2, 3, 2, dtype=torch.int64)}),
        ("transition", {"transition": torch.zeros(2, 3)}),
        ("transition", {"transition": torch.zeros(2, 3, 2, 2)}),
        ("transition", {"transition": torch.zeros(2, 2, dtype=torch.float64)}),
        ("lengths", {"lengths": torch.tensor([3])}),
        ("lengths", {"lengths": torch.tensor([0, 3])}),
        ("lengths", {"lengths": torch.tensor([1, 4])}),
        ("lengths", {"lengths": torch.tensor([1.0, 3.0])}),
    ],
)
def test_refuses_what_does_not_fit(name, change):
    fields = {"unary": torch.zeros(2, 3, 2), "transition": torch.zeros(2, 2), "lengths": torch.tensor([3, 1])}
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        ChainEnergy(**(fields | change))


@pytest.mark.parametrize("kind", [list, np.array, lambda each: np.array(each, np.int32), torch.tensor])
def test_lengths_may_be_a_list_or_an_array(kind):
    energy = ChainEnergy(torch.zeros(2, 3, 2), torch.zeros(2, 2), kind([3, 1]))
    assert energy.lengths.dtype == torch.int64
    assert energy.inside.sum(1).tolist() == [3, 1]
    model = HiddenMarkov(Gaussian(2, 2))
    assert model(torch.zeros(2, 3, 2), kind([3, 1])).lengths.tolist() == [3, 1]


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("lengths", [[1.0, 3.0], [True, True], [3], np.array([0.5, 1.0])])
def test_lengths_that_are_no_whole_numbers_are_refused(lengths):
    with pytest.raises(ValueError, match=r"^lengths: expected"):
        ChainEnergy(torch.zeros(2, 3, 2), torch.zeros(2, 2), lengths)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_energies_of_autocast_are_summed_in_single_precision(dtype, has_kernel, monkeypatch):
    if not has_kernel:
        monkeypatch.setattr(chain_steps, "compiled", lambda *_: None)
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 6, 3, generator=generator).to(dtype).requires_grad_()
    transition = torch.randn(3, 3, generator=generator, requires_grad=True)
    labels = torch.zeros(2, 6, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        energy = ChainEnergy(unary, transition)
        loss = chain_negative_log_likelihood(energy, labels)
        marginals = chain_dp.marginals(energy)
    exact = ChainEnergy(unary.double(), transition.double())
    torch.testing.assert_close(
        loss.double(), chain_negative_log_likelihood(exact, labels), rtol=1e-6, atol=1e-5
    )
    torch.testing.assert_close(
        marginals.states.double(), chain_dp.marginals(exact).states, rtol=1e-6, atol=1e-6
    )
    loss.sum().backward()
    assert (unary.grad.dtype, transition.grad.dtype) == (dtype, torch.float32)


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["unary", "transition"])
def test_refuses_nan_and_plus_infinity_inside(name, bad, per_step):
    energy = random_chain_energy(0, ragged=False, per_step=per_step)
    tensor = getattr(energy, name).clone()
    tensor.view(-1)[1] = bad
    with pytest.raises(ValueError, match=f"^{name}: expected finite values or −∞"):
        replace(energy, **{name: tensor}).check_values()


@pytest.mark.parametrize("label", [-1, 3])
def test_refuses_labels_that_are_no_states(label):
    with pytest.raises(ValueError, match=r"^labels: expected 0 to 2 .* got other values for 4"):
        random_chain_energy(0).score(torch.tensor([[label, 0, 0, 0, 0]]))


@pytest.mark.usefixtures("no_shape_checks")
def test_refuses_unaries_to_add_that_do_not_fit():
    energy = random_chain_energy(0)
    for unary in (torch.zeros(2, 5, 3, dtype=torch.float64), torch.zeros(4, 5, 3)):
        with pytest.raises(ValueError, match=r"^unary: expected"):
            energy.add_unary(unary)
