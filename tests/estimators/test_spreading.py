"""Work is spread over joblib's active backend: two workers of Dask give the bits of one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import joblib
import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.spreading import num_bytes, spread, workers

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """Two worker processes of one thread each."""
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def drawn(labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 5))
    scores = X @ random.normal(size=(5, labels)) + random.normal(size=(150, labels))
    return X, (scores > 1).astype(float)


@pytest.mark.parametrize(
    "settings", [{"max_parents": None}, {"max_parents": None, "C": 1.0, "tol": 1e-6}, {"max_parents": 2}]
)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_networks_have_the_same_bits_wherever_they_are_learned(client, monkeypatch, settings, form):
    monkeypatch.setattr("lmbm_torch.solvers.networks.chosen_parents.BLOCK", 3)
    X, Y = drawn()
    here = LMSBNClassifier(random_state=0, **settings).fit(form(X), Y)
    with joblib.parallel_config(backend="dask"):
        assert workers() == 2
        there = LMSBNClassifier(random_state=0, **settings).fit(form(X), Y)
    for name in ("ordering_", "coef_", "intercept_", "parent_coef_", "objective_", "duality_gap_", "n_iter_"):
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


def _size(common: tuple[np.ndarray, sparse.csr_array], factor: int) -> float:
    dense, rows = common
    return factor * (dense.sum() + rows.sum())


class Counted(np.ndarray):
    """An array that notes when it is pickled."""

    times = 0

    def __reduce_ex__(self, protocol):
        type(self).times += 1
        return np.asarray(self).__reduce_ex__(protocol)


def test_what_tasks_share_is_sent_once(client):
    dense, rows = np.ones((1000, 10)).view(Counted), sparse.csr_array(np.eye(5))
    Counted.times = 0
    with joblib.parallel_config(backend="dask"):
        found = [*spread(_size, (dense, rows), range(12))]
    assert found == [factor * 10_005.0 for factor in range(12)]
    assert Counted.times == 1


def test_the_size_of_what_is_shared_counts_its_arrays():
    rows = sparse.csr_array(np.eye(5))
    stored = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes
    assert num_bytes(np.ones(10)) == 80
    assert 80 + stored <= num_bytes([np.ones(10), rows]) < 80 + stored + 500


def test_without_workers_the_tasks_are_done_here_in_turn():
    done = []

    def work(common: int, task: int) -> int:
        done.append(task)
        return common * task

    found = spread(work, 3, range(4))
    assert next(found) == 0
    assert done == [0]
    assert [*found] == [3, 6, 9]
