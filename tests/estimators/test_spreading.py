"""Work is spread over joblib's active backend: two workers of Dask give the bits of one process."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import joblib
import numpy as np
import pytest
from rich.console import Console
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import Pipeline
from sweeps import slow

from lmbm_torch.compare import trials
from lmbm_torch.compare.comparing import compare
from lmbm_torch.data.dataset import without_split
from lmbm_torch.data.features import numbered
from lmbm_torch.estimators import AutoLabelClassifier, LMSBNClassifier, LMSBNClassifierCV
from lmbm_torch.estimators.automatic.candidates import Candidate
from lmbm_torch.estimators.automatic.search import Search, stratified_folds
from lmbm_torch.estimators.common.spreading import keep, num_bytes, spread, workers
from lmbm_torch.fitting import dual
from lmbm_torch.memory import memory_budget, part_bytes

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """Two worker processes of one thread each."""
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(params=["threading", "dask"])
def two_workers(request) -> dict[str, str | int]:
    """Threads, or Dask's processes, which take seconds to start, once for all tests here."""
    if request.param == "dask":
        request.getfixturevalue("client")
        return {"backend": "dask"}
    return {"backend": request.param, "n_jobs": 2}


@pytest.fixture
def sent_sizes(monkeypatch) -> list[int]:
    """The bytes of all that tasks share, each time that it is sent."""
    sizes = []

    def noted(sent, protocol):
        sizes.append(num_bytes(sent.value))
        return object.__reduce_ex__(sent, protocol)

    monkeypatch.setattr("lmbm_torch.estimators.common.spreading._SentOnce.__reduce_ex__", noted)
    return sizes


FOUND = ("ordering_", "coef_", "intercept_", "parent_coef_", "objective_", "duality_gap_", "n_iter_")


def drawn(labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 5))
    scores = X @ random.normal(size=(5, labels)) + random.normal(size=(150, labels))
    return X, (scores > 1).astype(float)


@pytest.mark.parametrize(
    "settings", [{"max_parents": None}, {"max_parents": None, "C": 1.0, "tol": 1e-6}, {"max_parents": 2}]
)
@pytest.mark.parametrize("form", [slow(np.asarray), sparse.csr_array])
def test_networks_have_the_same_bits_wherever_they_are_learned(two_workers, monkeypatch, settings, form):
    monkeypatch.setattr("lmbm_torch.solvers.networks.chosen_parents.BLOCK", 3)
    # As it is in the workers, and zeros enough for CSR to stay CSR.
    monkeypatch.setattr("lmbm_torch.solvers.networks.problems.MOSTLY_FULL", 2 / 3)
    X, Y = drawn()
    X[np.abs(X) < 0.6] = 0
    here = LMSBNClassifier(random_state=0, **settings).fit(form(X), Y)
    with joblib.parallel_config(**two_workers):
        assert workers() == 2
        there = LMSBNClassifier(random_state=0, **settings).fit(form(X), Y)
    for name in FOUND:
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


KERNELS = [
    {"kernel": "rbf"},
    {"kernel": "rbf", "tol": 1e-7, "C": 30.0},
    {"kernel": "poly", "parent_scale": 0.3},
    {"kernel": "precomputed", "ordering": "index"},
]
FOUND_BY_KERNELS = (*(name for name in FOUND if name != "coef_"), "dual_coef_", "support_", "mean_loss_")


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("settings", KERNELS)
def test_kernel_networks_have_the_same_bits_wherever_they_are_learned(two_workers, settings, missing):
    X, Y = drawn()
    X = X @ X.T if settings["kernel"] == "precomputed" else X
    if missing:
        Y[:9, [2, 3]] = np.nan
    here = LMSBNClassifier(random_state=0).set_params(**settings).fit(X, Y)
    with joblib.parallel_config(**two_workers):
        there = LMSBNClassifier(random_state=0).set_params(**settings).fit(X, Y)
    for name in FOUND_BY_KERNELS:
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


def test_kernel_values_are_sent_once_for_the_ordering_and_once_for_the_network(monkeypatch):
    sent = []

    def noted(work, common, tasks):
        sent.append([task.tolist() for task in tasks])
        return spread(work, common, tasks)

    monkeypatch.setattr("lmbm_torch.estimators.networks.kernel_blocks.spread", noted)
    X, Y = drawn(5)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        LMSBNClassifier(kernel="rbf", random_state=0).fit(X, Y)
        assert sent == [[[0, 1, 2], [3, 4]]] * 2
        # Whose labels turn the kernel values in ways that depend on the labels before.
        LMSBNClassifier(kernel="rbf", degree=3, ordering="index", random_state=0).fit(X, Y)
    assert len(sent) == 2


INCOMPLETE = {
    "some labels": {2: 0.3, 5: 0.1},
    "every label": dict.fromkeys(range(7), 0.2),
    "one label almost wholly": {0: 0.98},
    "one label wholly": {0: 1.0},
}


@pytest.mark.parametrize("missing", INCOMPLETE.values(), ids=INCOMPLETE.keys())
@pytest.mark.parametrize("tol", [1e-3, 1e-7])
def test_missing_labels_are_imputed_to_the_same_bits_wherever_labels_are_learned(two_workers, missing, tol):
    X, Y = drawn()
    for label, share in missing.items():
        Y[np.random.default_rng(label).random(len(Y)) < share, label] = np.nan
    settings = {"max_parents": None, "tol": tol, "random_state": 0, "ordering": [3, 0, 2, 6, 5, 4, 1]}
    is_unknown, told = 1.0 in missing.values(), "got only missing values of label_0; the value 0"
    with pytest.warns(UserWarning, match=told) if is_unknown else nullcontext():
        here = LMSBNClassifier().set_params(**settings).fit(X, Y)
    with (
        joblib.parallel_config(**two_workers),
        pytest.warns(UserWarning, match=told) if is_unknown else nullcontext(),
    ):
        there = LMSBNClassifier().set_params(**settings).fit(X, Y)
    for name in (*FOUND, "mean_loss_"):
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


def test_only_stages_of_several_labels_are_sent_and_without_features(monkeypatch):
    sent, features = [], []

    def noted(work, common, tasks, *kept):
        sent.append([task.tolist() for task in tasks])
        features.append(common.problems.features.size)
        return spread(work, common, tasks, *kept)

    monkeypatch.setattr("lmbm_torch.estimators.networks.network_training.spread", noted)
    X, Y = drawn()
    Y[:9, [2, 3]] = np.nan
    with joblib.parallel_config(backend="threading", n_jobs=2):
        LMSBNClassifier(max_parents=None, ordering="index", random_state=0).fit(X, Y)
    # Labels 0 to 2, then 3 alone, then 4 to 6.
    assert sent == [[[0, 1], [2]], [[4, 5], [6]]]
    assert features == [0, 0]


@pytest.mark.parametrize("max_iter", [2, 1000])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_along_a_path_start_and_end_alike_wherever_labels_are_learned(max_iter):
    X, Y = drawn(5)
    Y[::7, 1] = np.nan

    def along() -> LMSBNClassifier:
        limits = {"tol": 1e-6, "max_iter": max_iter}
        model, path = LMSBNClassifier(ordering="index", random_state=0).set_params(**limits), dual.Path()
        for C in (0.1, 1.0):
            model.set_params(C=C)._fit_along(path, X, Y)
        return model

    here = along()
    with joblib.parallel_config(backend="threading", n_jobs=2):
        there = along()
    for name in FOUND:
        assert np.array_equal(getattr(there, name), getattr(here, name)), name


def test_paths_have_the_same_scores_wherever_their_folds_are_learned(two_workers):
    X, Y = drawn(3)
    path = LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=[0.1, 1.0], cv=3, random_state=0)
    here = clone(path).fit(X, Y)
    with joblib.parallel_config(**two_workers):
        there = path.fit(X, Y)
    assert np.array_equal(there.scores_, here.scores_)
    assert np.array_equal(there.n_iters_, here.n_iters_)
    assert np.array_equal(there.estimator_.coef_, here.estimator_.coef_)


@pytest.mark.slow
def test_the_automatic_choice_is_the_same_wherever_candidates_are_fitted(client):
    X, Y = drawn(3)
    known = {"families": ["chain of logistic regressions"], "cv": 2, "random_state": 0}
    choice = AutoLabelClassifier(time_budget=1e4, **known)
    here = clone(choice).fit(X, Y)
    with joblib.parallel_config(backend="dask"):
        there = choice.fit(X, Y)
    times = {"seconds": 0.0}
    assert [row | times for row in there.table_] == [row | times for row in here.table_]
    assert np.array_equal(there.predict(X), here.predict(X))


def test_the_automatic_choice_sends_its_table_once(monkeypatch):
    kept, commons = [], []

    def noted(work, common, tasks):
        commons.append(common)
        return spread(work, common, tasks)

    monkeypatch.setattr(
        "lmbm_torch.estimators.automatic.search.keep", lambda value: kept.append(keep(value)) or kept[-1]
    )
    for module in ("search", "classifier"):
        monkeypatch.setattr(f"lmbm_torch.estimators.automatic.{module}.spread", noted)
    families = ["chain of logistic regressions"]
    AutoLabelClassifier(time_budget=1e4, families=families, cv=2, random_state=0).fit(*drawn(3))
    assert len(kept) == 1
    # Waves of folds, and the members.
    assert len(commons) > 2
    assert all(common is kept[0] for common in commons)


@pytest.mark.slow
def test_the_seconds_of_workers_count(client):
    """On a clock of this process's own time what others do would take none."""
    labels = np.arange(40)[:, None] % 2
    folds = stratified_folds(labels, 2, 0)
    busy = Candidate("busy", "", Pipeline([("model", Busy())]), (None,))
    search = Search(labels * 1.0, labels, folds, "exact_match", np.inf, lambda trial: None, time.process_time)
    started = search.now()
    with joblib.parallel_config(backend="dask"):
        search.run([busy])
    # Two rounds of one fold at a time, the warming up, and each worker's own.
    assert search.now() - started >= 3 * Busy.SECONDS


class Busy(ClassifierMixin, BaseEstimator):
    """Works for a while of the processor's time."""

    SECONDS = 0.1

    def fit(self, X, y):
        ends = time.process_time() + self.SECONDS
        while time.process_time() < ends:
            pass
        self.classes_ = [np.array([0, 1])]
        return self

    def predict(self, X):
        return X.astype(int)


@pytest.mark.slow
def test_a_comparison_has_the_same_table_wherever_its_trials_run(client, tmp_path):
    X, Y = drawn(3)
    data = without_split("tiny", X, Y, numbered("label", 3), numbered("feature", 5))
    settings = trials.Settings(splits=2, test_fraction=0.3, budget=2, folds=2, seed=0)
    few = ["independent logistic regressions", "LMSBN", "10 LMSBNs"]
    here = compare(data, few, "LMSBN", settings, tmp_path / "here", Console(quiet=True))
    with joblib.parallel_config(backend="dask"):
        there = compare(data, few, "LMSBN", settings, tmp_path / "there", Console(quiet=True))
    times = dict.fromkeys(trials.SECONDS)
    assert [row | times for row in there] == [row | times for row in here]


@pytest.mark.slow
def test_ray_has_the_same_bits(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    monkeypatch.setattr("lmbm_torch.solvers.networks.chosen_parents.BLOCK", 3)
    X, Y = drawn()
    here = LMSBNClassifier(max_parents=2, random_state=0).fit(X, Y)
    register_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            with joblib.parallel_config(backend="ray", n_jobs=2):
                there = LMSBNClassifier(max_parents=2, random_state=0).fit(X, Y)
        finally:
            ray.shutdown()
    assert np.array_equal(there.coef_, here.coef_)
    assert np.array_equal(there.parent_coef_, here.parent_coef_)


def _size(common: tuple[np.ndarray, sparse.csr_array], factor: int) -> float:
    dense, rows = common
    return factor * (dense.sum() + rows.sum())


class Counted(np.ndarray):
    """An array that notes when it is pickled."""

    times = 0

    def __reduce_ex__(self, protocol):
        type(self).times += 1
        return np.asarray(self).__reduce_ex__(protocol)


def test_workers_obey_the_memory_budget(two_workers):
    with joblib.parallel_config(**two_workers), memory_budget("3 MiB"):
        assert [*spread(lambda size, _: part_bytes(size), 2**30, range(2))] == 2 * [3 * 2**20]


def test_what_tasks_share_is_sent_once(client):
    dense, rows = np.ones((1000, 10)).view(Counted), sparse.csr_array(np.eye(5))
    Counted.times = 0
    with joblib.parallel_config(backend="dask"):
        found = [*spread(_size, (dense, rows), range(12))]
    assert found == [factor * 10_005.0 for factor in range(12)]
    assert Counted.times == 1


def _size_of_both(common: float, factor: int, kept: np.ndarray) -> float:
    return factor * (common + kept.sum())


def test_what_several_calls_share_is_sent_once(client):
    dense = np.ones((1000, 10)).view(Counted)
    Counted.times = 0
    with joblib.parallel_config(backend="dask"):
        kept = keep(dense)
        found = [[*spread(_size_of_both, start, range(12), kept)] for start in (0.0, 1.0)]
    assert found == [[factor * (10_000.0 + start) for factor in range(12)] for start in (0.0, 1.0)]
    assert Counted.times == 1


@pytest.mark.parametrize("settings", [{"max_parents": None}, {"max_parents": "auto"}])
def test_a_whole_fit_sends_its_features_once(client, monkeypatch, sent_sizes, settings):
    """That of the ordering or of the choice of the number of parents, and that of the blocks of labels."""
    monkeypatch.setattr("lmbm_torch.fitting.recipe.MANY_LABELS", 6)
    monkeypatch.setattr("lmbm_torch.estimators.networks.network_training.COUNTS", (1, 2))
    X, Y = np.random.default_rng(1).normal(size=(150, 60)), drawn()[1]
    with joblib.parallel_config(backend="dask"):
        LMSBNClassifier(random_state=0, **settings).fit(X, Y)
    assert sum(size >= X.nbytes for size in sent_sizes) == 1


def _inner(common: None, task: int) -> int:
    return os.getpid()


def _outer(common: None, task: int) -> tuple[int, int, set[int], bool]:
    is_kept_here = keep(np.ones(3)).value.value.sum() == 3
    return os.getpid(), workers(), {*spread(_inner, None, range(4))}, is_kept_here


def test_what_a_task_spreads_is_done_where_the_task_is(client):
    with joblib.parallel_config(backend="dask"):
        for process, at_once, inner, is_kept_here in spread(_outer, None, range(4)):
            assert process != os.getpid()
            assert (at_once, inner, is_kept_here) == (1, {process}, True)
        assert workers() == 2
    assert [*spread(_outer, None, range(2))] == [(os.getpid(), 1, {os.getpid()}, True)] * 2


def test_a_path_sends_its_instances_once(client, sent_sizes):
    X, Y = np.random.default_rng(1).normal(size=(150, 60)), drawn(3)[1]
    with joblib.parallel_config(backend="dask"):
        LMSBNClassifierCV(Cs=[0.1, 1.0], cv=3, random_state=0).fit(X, Y)
    assert sum(size >= X.nbytes for size in sent_sizes) == 1


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

    assert workers() == 1
    found = spread(work, 3, range(4))
    assert next(found) == 0
    assert done == [0]
    assert [*found] == [3, 6, 9]
