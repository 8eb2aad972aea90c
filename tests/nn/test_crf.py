"""The CRF layer against enumeration over all tag sequences, and its promises to PyTorch's users."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap
from torch.nn.functional import pad

from lmbm_torch.nn import CRF

TAGS = ["O", "B-a", "I-a"]


def layer(num_tags=3, seed=0, **settings) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(num_tags, batch_first=True, **settings).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def score(crf: CRF, rows, tags, tables=None) -> torch.Tensor:
    """The score of one sequence, token by token."""
    if not tags:
        return torch.zeros((), dtype=torch.float64)
    total = crf.start_transitions[tags[0]] + crf.end_transitions[tags[-1]]
    for t, tag in enumerate(tags):
        total = total + rows[t, tag]
        if t:
            total = total + crf.transitions[tags[t - 1], tag]
            total = total if tables is None else total + tables[t, tags[t - 1], tag]
    return total


def sequences(crf: CRF, length: int, is_allowed=lambda tags: True) -> list[tuple[int, ...]]:
    return [tags for tags in itertools.product(range(crf.num_tags), repeat=length) if is_allowed(tags)]


def draw(seed, batch=4, length=4, num_tags=3, strength=1.0):
    generator = torch.Generator().manual_seed(seed)
    emissions = strength * torch.randn(batch, length, num_tags, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    tags = torch.randint(num_tags, (batch, length), generator=generator)
    return emissions, mask, tags


@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_all_answers_equal_enumeration_under_masks_of_any_shape(seed, strength):
    crf = layer(seed=seed)
    emissions, mask, tags = draw(seed, strength=strength)
    mask[0] = False
    tables = torch.randn(4, 4, 3, 3, dtype=torch.float64)
    likelihood = crf(emissions, tags, mask, reduction="none", transitions=tables)
    partition = crf.log_partition(emissions, mask, transitions=tables)
    marginals = crf.marginals(emissions, mask, transitions=tables)
    decoded, best = (
        crf.decode(emissions, mask, transitions=tables),
        crf.top_k(emissions, mask, 1, transitions=tables),
    )
    for row in range(4):
        kept = mask[row].nonzero().flatten()
        every = sequences(crf, len(kept))
        scores = torch.stack(
            [score(crf, emissions[row, kept], each, tables[row, kept]) for each in every]
        ).double()
        total = scores.logsumexp(0)
        own = score(crf, emissions[row, kept], tags[row, kept].tolist(), tables[row, kept])
        torch.testing.assert_close(partition[row], total)
        torch.testing.assert_close(likelihood[row], own - total)
        assert decoded[row] == list(every[int(scores.argmax())])
        expected = torch.zeros(4, 3, dtype=torch.float64)
        for each, weight in zip(every, scores.softmax(0), strict=True):
            expected[kept, list(each)] += weight if each else 0
        torch.testing.assert_close(marginals[row], expected)
        places = torch.full((4,), -1)
        places[kept] = torch.tensor(decoded[row], dtype=torch.int64)
        assert best.labels[row].tolist() == places.tolist()


def test_top_k_lists_the_best_sequences_in_order():
    crf = layer()
    emissions, mask, _ = draw(3)
    mask[:, 1] = True
    found = crf.top_k(emissions, mask, 3)
    for row in range(4):
        kept = mask[row].nonzero().flatten()
        scores = sorted(score(crf, emissions[row, kept], each).item() for each in sequences(crf, len(kept)))
        assert found.objective[row].tolist() == pytest.approx(scores[::-1][:3])
        assert (found.labels[row][:, ~mask[row]] == -1).all()


def test_gradients_pass_finite_differences_twice():
    crf = layer()
    emissions, mask, tags = draw(1)
    names = [name for name, _ in crf.named_parameters()]

    def likelihood(emissions, *weights):
        return torch.func.functional_call(
            crf, dict(zip(names, weights, strict=True)), (emissions, tags, mask)
        )

    inputs = (emissions.requires_grad_(), *(p.detach().requires_grad_() for p in crf.parameters()))
    assert torch.autograd.gradcheck(likelihood, inputs)
    assert torch.autograd.gradgradcheck(likelihood, inputs)


@pytest.mark.parametrize("scheme", ["BIO", "IOB1"])
def test_forbidden_sequences_have_no_probability(scheme):
    crf = layer(tags=TAGS, constraints=scheme)

    def is_allowed(tags):
        names = [TAGS[tag] for tag in tags]
        for before, name in zip(["O", *names], names, strict=False):
            if scheme == "BIO" and name == "I-a" and before == "O":
                return False
            if scheme == "IOB1" and name == "B-a" and before == "O":
                return False
        return True

    emissions, _, _ = draw(5, strength=3.0)
    every = sequences(crf, 4, is_allowed)
    for row in range(4):
        scores = torch.stack([score(crf, emissions[row], each) for each in every])
        torch.testing.assert_close(crf.log_partition(emissions)[row], scores.logsumexp(0))
        assert tuple(crf.decode(emissions)[row]) == every[int(scores.argmax())]
    wrong = next(tags for tags in sequences(crf, 4) if not is_allowed(tags))
    assert crf(emissions[:1], torch.tensor([wrong])) == -torch.inf


def test_bioes_allows_whole_chunks_alone():
    tags = ["O", "B-a", "I-a", "E-a", "S-a", "B-b", "E-b"]
    crf = CRF(7, tags=tags, constraints="BIOES", batch_first=True)
    emissions = 5 * torch.randn(50, 6, 7)
    for row in crf.decode(emissions):
        open_chunk = None
        for tag in (tags[each] for each in row):
            prefix, _, kind = tag.partition("-")
            assert (open_chunk == kind) if prefix in "IE" else open_chunk is None
            open_chunk = kind if prefix in "BI" else None
        assert open_chunk is None


def test_listed_pairs_are_the_only_ones():
    crf = CRF(2, batch_first=True, tags=["a", "b"], constraints=[(None, "a"), ("a", "b"), ("b", "a")])
    assert crf.decode(torch.tensor([[[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]])) == [[0, 1, 0]]


@pytest.mark.parametrize("seed", range(3))
def test_partly_tagged_sequences_are_summed_over(seed):
    crf = layer(seed=seed)
    emissions, mask, _ = draw(seed)
    allowed = torch.rand(emissions.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    allowed[..., seed] = True
    found = crf.marginal_log_likelihood(emissions, allowed, mask, "none")
    for row in range(4):
        kept = mask[row].nonzero().flatten()
        every = sequences(crf, len(kept))
        some = [
            each for each in every if all(allowed[row, t, tag] for t, tag in zip(kept, each, strict=True))
        ]
        logs = [torch.stack([score(crf, emissions[row, kept], e) for e in group]) for group in (some, every)]
        torch.testing.assert_close(found[row], logs[0].double().logsumexp(0) - logs[1].double().logsumexp(0))


def test_length_first_is_the_transpose_of_batch_first():
    crf = layer()
    emissions, mask, tags = draw(2)
    other = CRF(3).double()
    other.load_state_dict(crf.state_dict())
    turned = emissions.transpose(0, 1), tags.mT, mask.mT
    torch.testing.assert_close(other(*turned), crf(emissions, tags, mask))
    assert other.decode(turned[0], turned[2]) == crf.decode(emissions, mask)
    torch.testing.assert_close(
        other.marginals(turned[0], turned[2]).transpose(0, 1), crf.marginals(emissions, mask)
    )


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_padding_and_other_rows_change_nothing(seed, more):
    crf = layer()
    emissions, mask, tags = draw(seed)
    alone = [crf(emissions[i : i + 1], tags[i : i + 1], mask[i : i + 1]) for i in range(4)]
    padded = torch.cat([emissions, torch.full((4, more, 3), torch.nan, dtype=torch.float64)], 1)
    labels, inside = pad(tags, (0, more), value=99), pad(mask, (0, more))
    values = crf(padded, labels, inside, "none")
    torch.testing.assert_close(values, torch.stack(alone))


def test_reductions_are_those_of_the_sequences():
    crf = layer()
    emissions, mask, tags = draw(4)
    each = crf(emissions, tags, mask, "none")
    torch.testing.assert_close(crf(emissions, tags, mask), each.sum())
    torch.testing.assert_close(crf(emissions, tags, mask, "mean"), each.mean())
    torch.testing.assert_close(crf(emissions, tags, mask, "token_mean"), each.sum() / mask.sum())
    with pytest.raises(ValueError, match="reduction: expected none, sum, mean or token_mean, got 'all'"):
        crf(emissions, tags, mask, "all")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype):
    crf = CRF(3, batch_first=True)
    emissions, mask, tags = draw(0)
    half = emissions.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = crf(half, tags, mask)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, crf(half.float(), tags, mask), rtol=0, atol=0)
    value.backward()
    assert half.grad is not None
    assert half.grad.dtype == dtype


def test_batches_of_batches_are_mapped_with_the_gradients_of_each():
    crf = layer()
    weights = {name: each.detach() for name, each in crf.named_parameters()}
    parts = zip(*(draw(seed, batch=2, length=5) for seed in range(3)), strict=True)
    emissions, mask, tags = (torch.stack(part) for part in parts)
    expected = torch.stack([crf(*each) for each in zip(emissions, tags, mask, strict=True)])
    torch.testing.assert_close(vmap(crf)(emissions, tags, mask), expected)
    each = vmap(crf.log_partition)(emissions, mask)
    torch.testing.assert_close(each[1], crf.log_partition(emissions[1], mask[1]))

    def likelihood(weights, *inputs):
        return functional_call(crf, weights, inputs)

    found = vmap(grad(likelihood), (None, 0, 0, 0))(weights, emissions, tags, mask)
    several = {name: torch.stack([number * each for number in range(3)]) for name, each in weights.items()}
    ensemble = vmap(likelihood)(several, emissions, tags, mask)
    total = grad(lambda *inputs: vmap(likelihood)(*inputs).sum())(several, emissions, tags, mask)
    for row in range(3):
        own = {name: values[row].clone().requires_grad_() for name, values in several.items()}
        inputs = emissions[row], tags[row], mask[row]
        torch.testing.assert_close(ensemble[row], likelihood(own, *inputs))
        likelihood(own, *inputs).backward()
        crf.zero_grad()
        crf(*inputs).backward()
        for name, parameter in crf.named_parameters():
            torch.testing.assert_close(found[name][row], parameter.grad)
            torch.testing.assert_close(total[name][row], own[name].grad)


def test_within_vmap_odd_tags_are_nan_and_second_derivatives_refused():
    crf = layer()
    emissions, mask, tags = (torch.stack([each, each]) for each in draw(0, batch=2))
    mask[1, 0, 0], tags[1, 0, 0] = True, 3
    assert vmap(crf)(emissions, tags, mask).isnan().tolist() == [False, True]

    def slope(emissions):
        return grad(lambda each: crf.log_partition(each).sum())(emissions).square().sum()

    with pytest.raises(RuntimeError, match="expected a first derivative"):
        vmap(grad(slope))(emissions)


# In a process without the tests' checks of annotations, which torch.compile cannot trace.
TRACED = """
import torch
from lmbm_torch.inference.trees.chain_gradient import chain_sums
from lmbm_torch.nn import CRF

torch.manual_seed(0)
crf = CRF(3, batch_first=True, tags=["O", "B-a", "I-a"], constraints="BIO").double()
emissions, mask = torch.randn(4, 5, 3).double(), torch.rand(4, 5) < 0.6
tags, gradients, names = torch.zeros(4, 5, dtype=torch.int64), [], []

def backend(graph, inputs):
    names.extend(str(node.target) for node in graph.graph.nodes)
    return graph

for function in (crf, torch.compile(crf, fullgraph=True, backend=backend)):
    crf.zero_grad()
    function(emissions, tags, mask).backward()
    gradients.append([parameter.grad.clone() for parameter in crf.parameters()])
torch.testing.assert_close(*gradients)
assert sum("chain_sums" in name for name in names) == 1, names
for shape in ((3, 3), (2, 2, 3, 3)):
    parts = torch.randn(2, 3, 3, requires_grad=True), torch.randn(shape, requires_grad=True)
    torch.library.opcheck(chain_sums, (*parts, torch.tensor([3, 1]), True))
program = torch.export.export(crf, (emissions, tags, mask))
assert not any("lmbm" in str(node.target) for node in program.graph.nodes)
torch.testing.assert_close(program.module()(emissions, tags, mask), crf(emissions, tags, mask))
"""


def test_the_layer_is_compiled_and_exported_as_one_graph_with_the_same_gradient():
    subprocess.run([sys.executable, "-W", "ignore", "-c", TRACED], check=True, env=os.environ)


def test_a_saved_layer_answers_the_same():
    crf, other = layer(tags=TAGS, constraints="BIO"), CRF(3, True, tags=TAGS, constraints="BIO").double()
    file = io.BytesIO()
    torch.save(crf.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    emissions, mask, _ = draw(0)
    assert other.decode(emissions, mask) == crf.decode(emissions, mask)
    assert [*crf.state_dict()] == ["start_transitions", "end_transitions", "transitions"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CRF(0), "num_tags"),
        (lambda: CRF(2, constraints="BIO"), "tags: expected the names of the tags"),
        (lambda: CRF(2, tags=["O"], constraints="BIO"), "tags: expected 2 names, got 1"),
        (lambda: CRF(2, tags=["O", "x"], constraints="BIO"), "expected O, B-type, I-type for BIO, got 'x'"),
        (lambda: CRF(2, tags=["a", "b"], constraints="XYZ"), "constraints: expected one of BIO"),
        (lambda: CRF(2, tags=["a", "b"], constraints=[("a", "c")]), "got 'c'"),
        (lambda: CRF(2)(torch.zeros(3, 1, 4), torch.zeros(3, 1)), "emissions: expected shape"),
        (lambda: CRF(2).decode(torch.zeros(3, 1, 2), torch.ones(1, 3)), r"mask: expected shape \(3, 1\)"),
        (lambda: CRF(2)(torch.zeros(3, 1, 2), torch.full((3, 1), 2)), "labels"),
        (lambda: CRF(2).decode(torch.full((3, 1, 2), torch.nan)), "NaN"),
        (
            lambda: CRF(2).log_partition(torch.zeros(3, 1, 2), transitions=torch.zeros(3)),
            "transitions: expected",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
