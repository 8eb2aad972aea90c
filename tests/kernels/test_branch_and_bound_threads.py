"""Branch and bound from threads, worker processes and devices: the same search everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from strategies.directed import random_directed_energy, random_known
from sweeps import slow
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.kernels.search import directed

DECODERS = (branch_and_bound.decode_hinge, branch_and_bound.decode)


def assert_same_decoding(came: Decoding, expected: Decoding) -> None:
    """Equal labels, nodes and certificates; equal losses up to rounding."""
    for name in ("labels", "nodes"):
        assert torch.equal(getattr(came, name), getattr(expected, name)), name
    for name in ("exact", "converged"):
        assert torch.equal(getattr(came.status, name), getattr(expected.status, name)), name
    torch.testing.assert_close(came.objective, expected.objective)
    torch.testing.assert_close(came.bound, expected.bound)


def test_losses_that_differ_by_round_off_tie():
    # Label 0 says nothing by itself, and the other two exchange their fields with its sign.
    generator = torch.Generator().manual_seed(0)
    field, weight = 0.3 * torch.rand(2, 200, generator=generator, dtype=torch.float64)
    unary = torch.stack([torch.zeros_like(field), field, field], 1)
    parents = torch.zeros(200, 3, 3, dtype=torch.float64)
    parents[:, 1, 0], parents[:, 2, 0] = weight, -weight
    energy = DirectedEnergy(unary, parents, torch.arange(3))
    for decode in DECODERS:
        assert decode(energy).labels[:, 0].tolist() == [1] * 200


def hard_energy(batch_size: int = 60) -> DirectedEnergy:
    """Searches of very different lengths, up to hundreds of nodes."""
    energy = random_directed_energy(0, 12, batch_size, coupling=0.1)
    return replace(
        energy, unary=torch.logspace(-1, 1, batch_size, dtype=torch.float64)[:, None] * energy.unary
    )


@pytest.fixture
def two_threads() -> Iterator[None]:
    """As many as the machines that run this have cores at least."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("node_limit", [None, 60, 200])
def test_a_first_try_that_was_too_short_leaves_no_trace(node_limit, monkeypatch):
    energy = hard_energy(20)
    expected = branch_and_bound.decode_hinge(energy, node_limit=node_limit)
    tries, stoppable = [], directed.stoppable
    monkeypatch.setattr(directed, "stoppable", lambda work: tries.append(work) or stoppable(work))
    monkeypatch.setattr(directed, "_AT_ONCE", 0)
    for fields in (0, 100 * energy.unary.numel(), 10_000 * energy.unary.numel()):
        monkeypatch.setattr(directed, "_FIELDS_AT_ONCE", fields)
        assert_same_decoding(branch_and_bound.decode_hinge(energy, node_limit=node_limit), expected)
    # Without a try, after one of 100 nodes, and not after one that sufficed.
    assert len(tries) == 1 + (node_limit != 60)


@pytest.mark.usefixtures("two_threads")
def test_threads_share_a_batch():
    energy = hard_energy()
    together = branch_and_bound.decode_hinge(energy)
    torch.set_num_threads(1)
    assert_same_decoding(together, branch_and_bound.decode_hinge(energy))


@pytest.mark.usefixtures("two_threads")
def test_several_threads_may_search_at_once():
    energies = [random_directed_energy(seed, 10, 40, coupling=0.1) for seed in range(8)]
    alone = [branch_and_bound.decode_hinge(energy) for energy in energies]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for came, expected in zip(pool.map(branch_and_bound.decode_hinge, energies), alone, strict=True):
                assert_same_decoding(came, expected)


class Decoded(Dataset[Tensor]):
    """The labels of a random model, decoded where the item is asked for."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return branch_and_bound.decode_hinge(random_directed_energy(index, 10, 20)).labels


# Python 3.12 warns of every fork beside threads; that it is safe here is what the test shows.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("start_method", ["fork", slow("spawn")])
def test_data_loader_workers_may_search(start_method):
    expected = [Decoded()[index] for index in range(4)]
    loader = DataLoader(
        Decoded(), batch_size=None, num_workers=2, multiprocessing_context=start_method, timeout=120
    )
    for came, labels in zip(loader, expected, strict=True):
        assert torch.equal(came, labels)


@pytest.mark.cuda
@pytest.mark.parametrize("decode", DECODERS)
def test_cuda_searches_like_the_cpu(decode):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    energy = random_directed_energy(0, 10, 50, coupling=0.3, num_cliques=5)
    moved = replace(
        energy,
        **{name: getattr(energy, name).cuda() for name in ("unary", "parents", "ordering", "clique_weight")},
    )
    known = random_known(0, energy, share=0.2)
    for options in ({}, {"cutoff": 2.0}, {"node_limit": 30}, {"top_k": 3}):
        found = decode(moved, known=known.cuda(), **options)
        assert found.labels.is_cuda
        on_cpu = decode(energy, known=known, **options)
        status = replace(found.status, exact=found.status.exact.cpu(), converged=found.status.converged.cpu())
        assert_same_decoding(
            Decoding(found.labels.cpu(), found.objective.cpu(), found.bound.cpu(), status, found.nodes.cpu()),
            on_cpu,
        )
