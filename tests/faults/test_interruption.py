"""Ctrl-C ends whatever runs, soon, and leaves an estimator as it was."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from lmbm_torch.energies import BipartiteEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.expected import bayes
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.relaxations import integer_program, lp_relaxation
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import branch_and_bound, undirected_branch_and_bound
from lmbm_torch.kernels.threads import interruptible, leavable
from lmbm_torch.solvers.machines import dual_coordinate
from lmbm_torch.solvers.structural import frank_wolfe


@pytest.fixture
def interrupted():
    """Call a function that runs for long, interrupt it, and see that it ends within a second."""
    # A debugger or a background shell may have it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def call(function, after=0.3):
        started = threading.Event()

        def interrupt():
            started.wait()
            time.sleep(after)
            if not over.is_set():
                sent.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGINT)

        over, sent = threading.Event(), []
        killer = threading.Thread(target=interrupt)
        killer.start()
        try:
            started.set()
            function()
        except KeyboardInterrupt:
            took = time.perf_counter() - sent[0]
        else:
            over.set()
            killer.join()
            pytest.fail("it ended by itself")
        killer.join()
        assert took < 1

    yield call
    signal.signal(signal.SIGINT, before)


def directed(labels):
    generator = torch.Generator().manual_seed(0)
    parents = torch.randn(labels, labels, generator=generator, dtype=torch.float64).tril(-1)
    unary = torch.randn(2, labels, generator=generator, dtype=torch.float64)
    return DirectedEnergy(unary, parents, torch.arange(labels))


def test_branch_and_bound(interrupted):
    branch_and_bound.decode_hinge(directed(30), node_limit=100)
    interrupted(lambda: branch_and_bound.decode_hinge(directed(600), node_limit=None))


def undirected(labels):
    generator = torch.Generator().manual_seed(0)
    pairwise = torch.randn(labels, labels, generator=generator, dtype=torch.float64)
    unary = torch.randn(1, labels, generator=generator, dtype=torch.float64)
    return PairwiseEnergy(unary, pairwise.triu(1) + pairwise.triu(1).mT)


def test_an_integer_program(interrupted):
    interrupted(lambda: integer_program.decode(undirected(60)), after=1.0)


def test_a_semidefinite_search(interrupted):
    energy = undirected(120)
    both = PairwiseEnergy(energy.unary.expand(2, -1), energy.pairwise)
    interrupted(lambda: semidefinite.decode(both))


@pytest.mark.parametrize("after", [0.1, 1.0])
def test_a_cost_function_network(interrupted, after):
    pytest.importorskip("pytoulbar2", reason="the optional extra wcsp is not installed")
    from lmbm_torch.inference.relaxations import cost_function_network

    interrupted(lambda: cost_function_network.decode(undirected(120)), after=after)
    assert cost_function_network.decode(undirected(5)).status.exact.all()


def hard():
    """Noise, which takes for ever to fit exactly."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(4000, 100)), (generator.random((4000, 3)) < 0.5).astype(int)


def test_a_fit_leaves_the_estimator_unfitted(interrupted):
    X, Y = hard()
    estimator = LMSBNClassifier(C=1e3, tol=1e-9, random_state=0)
    LMSBNClassifier(tol=0.1, random_state=0).fit(X[:50], Y[:50])
    interrupted(lambda: estimator.fit(X, Y))
    assert {*vars(estimator)} == {*estimator.get_params()}
    with pytest.raises(NotFittedError):
        estimator.predict(X)


# Constants that make one call of a kernel endless.
ENDLESS = {
    "machine": (LMBMClassifier(solver="dual_coordinate"), dual_coordinate, "SWEEPS_PER_PASS", 10**7),
    "structural": (StructuralSVMClassifier(), frank_wolfe, "MAX_SWEEPS", 10**7),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ENDLESS)
def test_a_single_pass_of_a_fit(interrupted, monkeypatch, name):
    X, Y = hard()
    estimator, module, constant, endless = ENDLESS[name]
    estimator.set_params(C=1e3, tol=1e-9, random_state=0, max_iter=1).fit(X[:50], Y[:50])
    learned = dict(vars(estimator))
    monkeypatch.setattr(module, constant, endless)
    monkeypatch.setitem(frank_wolfe.update.__kwdefaults__, "known_share", 0.0)
    interrupted(lambda: estimator.set_params(max_iter=9).fit(X[:500], Y[:500]))
    assert vars(estimator) == learned | {"max_iter": 9}


@pytest.mark.parametrize("name", ["decode", "decode_hinge"])
def test_an_undirected_search(interrupted, name):
    search = getattr(undirected_branch_and_bound, name)
    search(undirected(9), node_limit=None)
    interrupted(lambda: search(undirected(90), node_limit=None))


@pytest.mark.parametrize(("batch", "visible"), [(2, 300), (200, 12)], ids=["large", "small"])
def test_belief_propagation(interrupted, batch, visible):
    generator = torch.Generator().manual_seed(0)
    sizes = (batch, visible), (batch, 10), (visible, 10)
    # So strong that messages never come to rest.
    energy = BipartiteEnergy(*(3 * torch.randn(size, generator=generator) for size in sizes))
    matrix_bp.marginals(energy, num_iters=2)
    interrupted(lambda: matrix_bp.marginals(energy, num_iters=10**8, tol=0.0))


def test_a_refit_leaves_what_was_learned(interrupted):
    X, Y = hard()
    estimator = LMSBNClassifier(random_state=0, tol=1e-9).fit(X[:50], Y[:50, :2])
    expected = estimator.predict(X[:50])
    estimator.set_params(C=1e3)
    interrupted(lambda: estimator.fit(X, Y))
    np.testing.assert_array_equal(estimator.predict(X[:50]), expected)


def test_a_refit_that_is_refused_leaves_what_was_learned():
    X, Y = hard()
    estimator = LMSBNClassifier(random_state=0).fit(X[:50], Y[:50, :2])
    expected = estimator.predict(X[:50])
    with pytest.raises(ValueError, match="y: expected"):
        estimator.fit(X[:50, :7], Y[:49])
    np.testing.assert_array_equal(estimator.predict(X[:50]), expected)


def test_work_that_does_not_stop_is_left_behind(interrupted):
    # Half a second is what it is given.
    interrupted(lambda: interruptible(lambda: time.sleep(3), lambda: None), after=0.1)


def test_work_that_cannot_be_stopped_is_left_behind(interrupted):
    interrupted(lambda: leavable(lambda: time.sleep(3)), after=0.1)
    assert leavable(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        leavable(lambda: 1 // 0)


def test_a_label_powerset_is_left_behind(interrupted):
    X, Y = hard()
    baseline = LabelPowersetSVM()
    # Some four seconds of libsvm's.
    interrupted(lambda: baseline.fit(X[:1000], Y[:1000]), after=0.1)
    assert {*vars(baseline)} == {*baseline.get_params()}


def test_a_relaxation_is_told_to_end(monkeypatch):
    def at_once(work, stop):
        stop()
        return work()

    monkeypatch.setattr(lp_relaxation, "interruptible", at_once)
    energy = undirected(12)
    assert lp_relaxation.decode(energy).status.converged.all()
    monkeypatch.setattr(lp_relaxation, "SOON", 0)
    ended = lp_relaxation.decode(energy)
    assert not ended.status.converged.any()
    assert ended.bound >= exact.decode(energy).objective


@pytest.mark.slow
def test_a_large_relaxation(interrupted):
    interrupted(lambda: lp_relaxation.decode(undirected(900)), after=4.0)


# Each kind of work as a function of its size, a small size, whose run compiles the kernels, and a large one.
LONG = {
    "fit": (lambda rows: LMSBNClassifier(C=1e3, tol=1e-9).fit(*(each[:rows] for each in hard())), 20, None),
    "search": (lambda labels: branch_and_bound.decode_hinge(directed(labels)), 8, 600),
    "integer programme": (lambda labels: integer_program.decode_hinge(undirected(labels)), 4, 40),
    "expected F1": (lambda labels: bayes.decode([directed(labels)], "f1", max_labellings=10**7), 16, 60),
    "samples": (lambda labels: ancestral.marginals(directed(labels), 10**4), 4, 600),
}


def worked(work, size, beginning, ended):
    """Tell when ``work(size)`` begins and how it ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    beginning.set()
    try:
        work(size)
    except KeyboardInterrupt:
        ended.set()


@pytest.mark.parametrize(("work", "small", "large"), LONG.values(), ids=LONG)
def test_in_a_worker_process(work, small, large):
    work(small)
    context = multiprocessing.get_context("fork")
    beginning, ended = context.Event(), context.Event()
    worker = context.Process(target=worked, args=(work, large, beginning, ended))
    worker.start()
    try:
        assert beginning.wait(60)
        time.sleep(0.5)
        os.kill(worker.pid, signal.SIGINT)
        assert ended.wait(1)
        # What a process does after its work is not the library's.
        worker.join(30)
        assert worker.exitcode == 0
    finally:
        worker.kill()


CELL = """
import torch
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.search import branch_and_bound

couplings = torch.randn(600, 600, dtype=torch.float64).tril(-1)
energy = DirectedEnergy(torch.zeros(1, 600, dtype=torch.float64), couplings, torch.arange(600))
branch_and_bound.decode_hinge(energy, node_limit=1000)
print("begun", flush=True)
try:
    branch_and_bound.decode_hinge(energy)
finally:
    print("ended", flush=True)
"""


@pytest.mark.slow
def test_in_a_notebook():
    manager = pytest.importorskip("jupyter_client.manager", reason="the extra notebooks is not installed")
    pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
    kernel, client = manager.start_new_kernel()

    def until(kind, **content):
        """The content of the next message of this kind in which these entries are."""
        while True:
            message = client.get_iopub_msg(timeout=120)
            came = message["content"]
            if message["msg_type"] == kind and all(each in came[name] for name, each in content.items()):
                return came

    try:
        client.execute(CELL)
        until("stream", text="begun")
        time.sleep(0.5)
        kernel.interrupt_kernel()
        interrupted = time.perf_counter()
        until("stream", text="ended")
        # What IPython then takes to draw the traceback is its own.
        assert time.perf_counter() - interrupted < 1
        assert until("error")["ename"] == "KeyboardInterrupt"
        # Until it is idle again, the kernel drops cells that come after one that failed.
        until("status", execution_state="idle")
        client.execute("print(int(branch_and_bound.decode_hinge(energy, node_limit=9).nodes))")
        assert until("stream")["text"].strip().isdigit()
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_other_threads_work_where_they_are():
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(interruptible(threading.current_thread, lambda: None))
    )
    thread.start()
    thread.join()
    assert seen == [thread]


def test_what_goes_wrong_inside_is_raised():
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, lambda: None)
