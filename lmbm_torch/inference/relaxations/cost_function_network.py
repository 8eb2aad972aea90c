"""MAP decoding of Boltzmann machines and graphs of tables by the solver toulbar2 (extra ``wcsp``).

toulbar2 minimises a cost function network with whole numbers as costs: weights are rounded to nine decimals
of the largest weight, and optima are proven up to the rounding. The solver runs on the CPU in a separate
process, because compiled code would delay every signal in the caller's process. A call ends at a limit of
wall time or by Ctrl-C, and calls of several threads run in parallel. The first call starts the process, which
then waits for further calls and ends with the caller. The process is started anew, not forked: no threads
or locks are inherited. Arrays are sent as bytes.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from lmbm_torch.checks import check_positive
from lmbm_torch.energies import CliqueEnergy, FactorEnergy, PairwiseEnergy, to_factors
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.graphs import dual_ascent
from lmbm_torch.inference.graphs.arrays import Example, sweeps
from lmbm_torch.shapes import Known

__all__ = ["decode"]

# Most seconds that a new solver process may take to start: imports from a slow disk are slow.
START = 120.0
# Seconds to wait for the best answer so far after the signal to end.
GRACE = 0.5
# Seconds between two such signals: a signal is lost before the solver listens.
AGAIN = 0.05


class SolverProcess:
    """Process that runs a Python file and answers each list of arrays by one array.

    The file is for example :mod:`lmbm_torch.inference.relaxations.toulbar2`. The first problem starts the
    process, which also answers later problems. If an answer is missing, the process is ended.

    Args:
        file: the Python file to run.
        arguments: the file's command-line arguments after the first, the descriptor of the connection.
    """

    def __init__(self, file: Path, *arguments: str) -> None:
        self._file, self._arguments = file, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, problem: Sequence[np.ndarray], seconds: float | None) -> np.ndarray | None:
        """Send the arrays of ``problem`` to the process, and return the answer, or None if none came in time.

        Args:
            problem: arrays, sent as float64.
            seconds: wall time after which the solver is told to end with the best answer so far.

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
            # -P: without this option, a module next to the file could replace a module of Python.
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
        """Signal the process to end; return whether an answer came within ``GRACE`` seconds."""
        assert self._process is not None
        end = monotonic() + GRACE
        while monotonic() < end:
            self._process.send_signal(signal.SIGVTALRM)
            if self._connection.poll(AGAIN):
                return True
        return False


if find_spec("pytoulbar2") is None:
    raise ImportError('cost_function_network needs the solver toulbar2: pip install "lmbm-torch[wcsp]"')


# Decimals to which toulbar2 rounds costs, after division by the largest weight.
DECIMALS = 9
# Largest gap of bound and score, relative to the score, for a proven answer: costs are rounded.
PROOF = 1e-6
WORKER = Path(__file__).with_name("toulbar2.py")


@torch.no_grad()
def decode(
    energy: PairwiseEnergy | CliqueEnergy | FactorEnergy,
    *,
    known: Known | None = None,
    time_limit: float | None = None,
) -> Decoding:
    """Return argmax_y score(y), the MAP labelling, by an exact search with a time limit.

    The objective is the score; ``nodes`` is the number of nodes of the search tree. At the time limit,
    ``status.converged`` is false, and the answer is the best labelling so far, improved by flips of
    single labels, with the best bound. If the solver has found no labelling by then, labelling and bound come
    from dual ascent. Proofs hold up to a millionth of the score.

    Args:
        energy: a Boltzmann machine, or graphs of tables.
        known: the known labels, NaN for a free label: 0 or 1, or a state of a graph's label. The search
            considers only labellings with the known values.
        time_limit: the number of seconds of wall time for an example, exceeded by at most half a second.
            Results then depend on the computer's speed.

    Raises:
        ValueError: the energy contains NaN or infinity (except for −∞ in graphs), or couplings that are not
            symmetric; ``known`` has another shape than (batch, labels), or impossible values; a graph has no
            allowed labelling; the time limit is not a finite number above 0.
        RuntimeError: the solver's process does not start, or ended unexpectedly, for example for lack of
            memory.
    """
    if time_limit is not None:
        check_positive("time_limit", time_limit)
    energy.check_values()
    return dual_ascent.decoded(
        to_factors(energy), known, lambda example: _searched(example, time_limit), PROOF
    )


def _searched(example: Example, time_limit: float | None) -> dual_ascent.Found:
    """Solve a graph; if the solver has found no labelling, fall back to dual ascent."""
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
    # Rounding changes each cost by at most one unit in the last decimal place: lower the bound accordingly.
    bound = example.constant - scale * (least - len(orders) * 10.0**-DECIMALS)
    sweeps().improved(graph, example.unary, example.entries, labels)
    score = example.constant + sweeps().score_of(graph, example.unary, example.entries, labels)
    return dual_ascent.Found(labels, score, bound, nodes, nodes, bool(least >= loss))


@contextmanager
def _solver() -> Iterator[SolverProcess]:
    """Yield a solver process that is not in use: a waiting process, or else a new process."""
    waiting = _waiting(os.getpid())
    solver = waiting.pop() if waiting else SolverProcess(WORKER, str(DECIMALS))
    try:
        yield solver
    finally:
        waiting.append(solver)


@cache
def _waiting(process: int) -> list[SolverProcess]:
    """Return the waiting solvers of the process with this id; solvers that a fork inherits are not used."""
    return []


@atexit.register
def _end() -> None:
    for solver in _waiting(os.getpid()):
        solver.close()
