"""A smaller budget of memory: the same answers from smaller tables, or a refusal that names the limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lmbm_torch import memory
from lmbm_torch.constraints import Constraints
from lmbm_torch.data.sequences.records import digit_numbers
from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import ChainCRF, ChainSVM, LMSBNClassifier
from lmbm_torch.inference import decode_expected
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.messages import matrix_bp, mini_buckets
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import best_first, most_probable
from lmbm_torch.memory import memory_budget
from lmbm_torch.models import SigmoidBeliefNetwork


class Tables(TorchDispatchMode):
    """The largest tensor that is made meanwhile."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        for each in tree_flatten(found)[0]:
            if isinstance(each, Tensor) and each._base is None:
                self.largest = max(self.largest, each.nbytes)
        return found


GENERATOR = torch.Generator().manual_seed(0)
draw = partial(torch.randn, generator=GENERATOR, dtype=torch.float64)


def machine(batch: int, labels: int, within: int) -> PairwiseEnergy:
    """Labels that are coupled with those at most so far away."""
    upper = 0.3 * draw(labels, labels).triu(1).tril(within)
    return PairwiseEnergy(draw(batch, labels), upper + upper.mT)


def directed():
    model = SigmoidBeliefNetwork(5, 9, torch.arange(9), 2).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.3 * draw(weight.shape))
        return model(draw(40, 5))


DENSE = machine(12, 10, within=9)
CHAIN = machine(100, 12, within=6)
UNITS = BipartiteEnergy(draw(40, 12), draw(40, 9), 0.3 * draw(12, 9))
NETWORK = directed()
# Each with the bytes of its budget.
PARTS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "enumeration": (lambda: exact.marginals(DENSE).labels, 20_000),
    "matrix propagation": (lambda: matrix_bp.marginals(UNITS, backend="plain").visible, 5_000),
    "junction tree": (lambda: elimination.marginals(CHAIN).labels, 150_000),
    "mini-buckets": (lambda: mini_buckets.bounds(CHAIN, width=6, num_iters=3).upper, 150_000),
    "expected measures": (lambda: decode_expected([NETWORK], "f1").objective, 3_000),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_smaller_budget_gives_the_same_answer_from_smaller_tables(name):
    run, size = PARTS[name]
    run()
    with Tables() as usual:
        expected = run()
    with memory_budget(size), Tables() as small:
        found = run()
    assert small.largest < usual.largest
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_labellings_and_draws_are_found_in_parts():
    expected = most_probable.marginals(NETWORK).states
    assert len([*most_probable._chunks(NETWORK, None, 10**5)]) == 1
    with memory_budget(20_000):
        parts = [energy.batch_size for energy, _ in most_probable._chunks(NETWORK, None, 10**5)]
        found = most_probable.marginals(NETWORK).states
        drawn = ancestral.sample(NETWORK, 400, generator=torch.Generator().manual_seed(0))
    assert parts == [1] * 40
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    # In another order, but of the same distribution.
    torch.testing.assert_close(drawn.double().mean(0), expected[..., 1], rtol=0, atol=0.12)


def test_sizes_of_many_labels_are_weighed_in_parts():
    labels = 90
    surest = DirectedEnergy(20 * draw(100, labels).sign(), 0 * draw(labels, labels), torch.arange(labels))
    with memory_budget(1_000_000), Tables() as tables:
        found = decode_expected([surest], "f1", max_labellings=2)
    assert found.status.exact.all()
    assert tables.largest < 1_000_000


def test_kernel_values_and_chains_are_computed_in_parts():
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(100, 5)), (random.normal(size=(100, 2)) > 0).astype(float)
    numbers = digit_numbers(6)
    sequences = [each.astype(np.float64) for each in numbers.within(0).features], numbers.within(0).labels
    fits = {
        "network": lambda: LMSBNClassifier(kernel="rbf", calibrate=False, tol=1e-3, random_state=0).fit(X, Y),
        "chain": lambda: ChainCRF(tol=1e-3).fit(*sequences),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMBM_MEMORY", "8 kB")
        small = {name: fit() for name, fit in fits.items()}
    for name, fit in fits.items():
        assert small[name].objective_ == pytest.approx(fit().objective_, rel=2e-3)
    network = small["network"]
    with Tables() as usual:
        expected = network.decision_function(X)
    with Tables() as parts, memory_budget("8 kB"):
        np.testing.assert_allclose(network.decision_function(X), expected, rtol=1e-9, atol=1e-12)
    assert parts.largest < usual.largest / 4


def test_rules_are_propagated_in_parts():
    rules = Constraints.of(["a -> b", "b -> c"], ["a", "b", "c"])
    known = np.full((500, 3), np.nan)
    known[::2, 0] = 1
    expected = rules.propagate(known)
    with memory_budget(1):
        found = rules.propagate(known)
    for part, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(part, other)


def test_limits_become_the_budget():
    with memory_budget("1 kiB"):
        with pytest.raises(ValueError, match="expected a treewidth of at most 5, got at least 6"):
            elimination.log_partition(machine(1, 12, within=6))
        with pytest.raises(ValueError, match=r"width: expected tables of at most 9\.54e-07 GiB"):
            mini_buckets.bounds(machine(1, 12, within=6), width=6)
        numbers = digit_numbers(6).within(0)
        features = [each.astype(np.float64) for each in numbers.features]
        with pytest.raises(ValueError, match=r"kernel: expected kernel values of at most 9\.54e-07 GiB"):
            ChainSVM(kernel="rbf").fit(features, numbers.labels)
        # A search ends with what it has.
        ended = best_first.decode(NETWORK, node_limit=None)
    assert bool((ended.bound >= best_first.decode(NETWORK).objective - 1e-9).all())


def test_the_innermost_budget_holds_and_the_environment_is_the_outermost(monkeypatch):
    assert (memory.part_bytes(100), memory.limit_bytes(100)) == (100, 100)
    monkeypatch.setenv("LMBM_MEMORY", "2 KiB")
    assert (memory.part_bytes(100), memory.limit_bytes(100)) == (100, 2048)
    with memory_budget(50):
        assert (memory.part_bytes(100), memory.limit_bytes(100)) == (50, 50)
        with memory_budget("1.5kB"):
            assert memory.limit_bytes(100) == 1500
        assert memory.limit_bytes(100) == 50
    assert memory.limit_bytes(100) == 2048


@pytest.mark.parametrize("size", [0, -1, "", "much", "-1 MiB", "0.1", "3 TB", None, True, float("nan")])
def test_what_is_no_size_is_refused(size, monkeypatch):
    with (
        pytest.raises(
            ValueError, match=r"size: expected a number of bytes, or a text such as '256 MiB', got"
        ),
        memory_budget(size),
    ):
        pass
    if size and isinstance(size, str):
        monkeypatch.setenv("LMBM_MEMORY", size)
        with pytest.raises(ValueError, match="LMBM_MEMORY: expected a number of bytes"):
            memory.part_bytes(1)
