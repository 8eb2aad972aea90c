"""MAP decoding of Boltzmann machines and graphs of tables by toulbar2: the extra ``wcsp``.

A cost function network has whole numbers as costs: weights have nine decimals of the largest weight, and
proofs hold up to the rounding. The solver runs on the CPU, in a separate process: a call ends at a limit of
wall time and by Ctrl-C, and calls of several threads run in parallel. Compiled code without pause would
delay every signal in the same process. The first call starts the process, which then waits for further
calls and ends with the caller. The process is new, not a fork: threads and locks are not inherited. Arrays
are exchanged as bytes.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from lmbm_torch.checks import check_positive
from lmbm_torch.energies import FactorEnergy, PairwiseEnergy
from lmbm_torch.inference.common.given import clamp, free_part
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.graphs import dual_ascent
from lmbm_torch.inference.graphs.arrays import Example, sweeps
from lmbm_torch.inference.relaxations.objectives import Score, Solution, Task
from lmbm_torch.shapes import Known

__all__ = ["decode"]

# Seconds for the start of a solver: imports from a slow disk.
START = 120.0
# Seconds for the last answer after the signal to end, and between two signals.
GRACE = 0.5
AGAIN = 0.05


class SolverProcess:
    """Process of a file that answers arrays by an array, such as
    :mod:`lmbm_torch.inference.relaxations.toulbar2`.

    The first problem starts the process, which answers further problems, and ends after a missing answer.

    Args:
        file: the Python file to run.
        arguments: after the descriptor of the connection.
    """

    def __init__(self, file: Path, *arguments: str) -> None:
        self._file, self._arguments = file, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, problem: Sequence[np.ndarray], seconds: float | None) -> np.ndarray | None:
        """Return the float64 array that answers the arrays of ``problem``, or None without an answer.

        Args:
            problem: float64 arrays.
            seconds: of wall time, after which the solver is told to end with the best answer so far.

        Raises:
            RuntimeError: the process does not start, or ended unexpectedly.
        """
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
            for array in problem:
                self._connection.send_bytes(np.ascontiguousarray(array, np.float64).tobytes())
            if not self._connection.poll(seconds) and not self._told_to_end():
                self.close()
                return None
            return np.frombuffer(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as lost:
            self.close()
            raise RuntimeError(f"{self._file.stem}: expected an answer, but its process ended") from lost
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, if started."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.close()
        self._connection, theirs = Pipe()
        with theirs:
            # -P: a module in the folder of the file must not replace a module of Python.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(self._file), str(theirs.fileno()), *self._arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        if not self._connection.poll(START):
            raise RuntimeError(f"{self._file.stem}: expected it to start within {START:g} s")
        self._connection.recv_bytes()

    def _told_to_end(self) -> bool:
        """Return whether an answer came after the signal, which is lost before the solver listens."""
        assert self._process is not None
        end = monotonic() + GRACE
        while monotonic() < end:
            self._process.send_signal(signal.SIGVTALRM)
            if self._connection.poll(AGAIN):
                return True
        return False


if find_spec("pytoulbar2") is None:
    raise ImportError('cost_function_network needs the solver toulbar2: pip install "lmbm-torch[wcsp]"')


# Decimals of the costs in toulbar2, relative to the largest weight.
DECIMALS = 9
# Relative difference of bound and score of a graph, by the rounding of all costs, that counts as a proof.
PROOF = 1e-6
SPINS = np.array([-1.0, 1.0])
WORKER = Path(__file__).with_name("toulbar2.py")


@torch.no_grad()
def decode(
    energy: PairwiseEnergy | FactorEnergy, *, known: Known | None = None, time_limit: float | None = None
) -> Decoding:
    """Return argmax_y score(y), the MAP labelling; the score is the objective, ``nodes`` those of the search
    tree.

    An example at the limit has ``status.converged`` false, the best labelling so far, improved by single
    flips, and the best bound. Without any labelling so far, the labelling of a Boltzmann machine follows the
    labels' own evidence, improved by flips, and the bound is the sum of all weights' magnitudes; of a graph
    both are those of dual ascent. Proofs of graphs hold up to a millionth of the score.

    Args:
        energy: a Boltzmann machine, or graphs of tables.
        known: {0, 1, NaN}, of graphs a state or NaN, NaN for a free label; only labellings that agree
            compete.
        time_limit: the number of seconds of wall time for an example, exceeded by at most half a second.
            Results then depend on the computer.

    Raises:
        ValueError: NaN or infinity in the energy, except for −∞ in graphs, or couplings that are not
            symmetric; ``known`` of another shape or with other values; a graph without an allowed labelling;
            a time limit that is not a finite number above 0.
        RuntimeError: the solver's process does not start, or ended unexpectedly, for example without
            memory.
    """
    if time_limit is not None:
        check_positive("time_limit", time_limit)
    if isinstance(energy, FactorEnergy):
        return dual_ascent.decoded(energy, known, lambda example: _searched(example, time_limit), PROOF)
    task = Task.of(energy, Score(), known)
    settled = task.settled
    free = free_part(settled.energy, settled.known)
    couplings = free.pairwise.expand(energy.batch_size, -1, -1).numpy()
    with _solver() as solver:
        solutions = [
            _solve(solver, fields, pairs, score, time_limit)
            for fields, pairs, score in zip(
                free.unary.numpy(), couplings, free.constant.tolist(), strict=True
            )
        ]
    leaders = torch.tensor(np.array([solution.values for solution in solutions]), device="cpu").double()
    labels = settled.of_all(clamp(leaders, settled.known))
    if not all(solution.converged for solution in solutions):
        labels = task.better(task.improve(labels), task.own_choice())
    found = task.decoding(labels.long(), solutions)
    return replace(found, nodes=found.status.num_iters)


def _searched(example: Example, time_limit: float | None) -> dual_ascent.Found:
    """Solve a graph, or ascend the dual if the solver has found no labelling."""
    graph, tables = example.graph, np.concatenate([example.unary, example.entries])
    variables = len(graph.states)
    scale = float(np.abs(tables[np.isfinite(tables)]).max(initial=0.0)) or 1.0
    orders = np.concatenate([np.ones(variables), np.diff(graph.place)])
    members = np.concatenate([np.arange(variables), graph.variable])
    with _solver() as solver:
        answer = solver.answer((graph.states, orders, members, -tables / scale), time_limit)
    if answer is None or not np.isfinite(answer[1]):
        found = dual_ascent.searched(example, 1000, dual_ascent.ROOT_GAIN, 1)
        return found._replace(converged=False)
    least, loss, nodes, labels = answer[0], answer[1], int(answer[2]), answer[3:].astype(np.int64)
    # Rounding changes each cost by at most one unit in the last decimal place.
    bound = example.constant - scale * (least - len(orders) * 10.0**-DECIMALS)
    sweeps().improved(graph, example.unary, example.entries, labels)
    score = example.constant + sweeps().score_of(graph, example.unary, example.entries, labels)
    return dual_ascent.Found(labels, score, bound, nodes, nodes, bool(least >= loss))


def _solve(
    solver: SolverProcess, fields: np.ndarray, couplings: np.ndarray, settled: float, time_limit: float | None
) -> Solution:
    """Solve one example; ``settled`` is the score of known and settled labels."""
    scale = float(max(np.abs(fields).max(), np.abs(couplings).max())) or 1.0
    first, second = np.triu(couplings).nonzero()
    pairs = -(couplings[first, second] / scale)[:, None, None] * SPINS[:, None] * SPINS
    tables = np.concatenate([(-(fields / scale)[:, None] * SPINS).ravel(), pairs.ravel()])
    size = len(fields)
    orders = np.repeat([1, 2], [size, len(first)])
    members = np.concatenate([np.arange(size), np.stack([first, second], 1).ravel()])
    answer = solver.answer((np.full(size, 2), orders, members, tables), time_limit)
    if answer is None:
        weights = np.abs(fields).sum() + np.abs(couplings).sum() / 2
        return Solution(np.zeros(size), -weights - settled, False, 0, scale)
    least, loss, nodes, values = answer[0], answer[1], int(answer[2]), answer[3:]
    # Rounding changes each cost by at most one unit in the last decimal place.
    unseen = len(orders) * 10.0**-DECIMALS
    return Solution(values, scale * (least - unseen) - settled, bool(least >= loss), nodes, scale)


@contextmanager
def _solver() -> Iterator[SolverProcess]:
    """Yield a free process: a waiting process, or a new process."""
    waiting = _waiting(os.getpid())
    solver = waiting.pop() if waiting else SolverProcess(WORKER, str(DECIMALS))
    try:
        yield solver
    finally:
        waiting.append(solver)


@cache
def _waiting(process: int) -> list[SolverProcess]:
    """Return the waiting solvers of this process; inherited solvers of a fork belong to the parent."""
    return []


@atexit.register
def _end() -> None:
    for solver in _waiting(os.getpid()):
        solver.close()
