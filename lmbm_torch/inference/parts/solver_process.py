"""A solver in a process of its own, which can be ended whatever it does: at a time limit, or by Ctrl-C.

Python tells of a signal no sooner than compiled code returns, and a solver that never looks up is deaf until
then. The process is a new one, no fork: it has none of this one's threads and locks. Arrays go there and back
as bytes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic

import numpy as np

__all__ = ["SolverProcess"]

# Seconds that a solver has to start: imports alone, but from a slow disk.
START = 120.0
# Seconds for its last answer once it was told to end, and between one telling and the next.
GRACE = 0.5
AGAIN = 0.05


class SolverProcess:
    """A file that answers arrays by an array, as :mod:`lmbm_torch.inference.parts.toulbar2` does.

    It is started by the first problem, and answers others as well; it is over where it did not answer in
    time.

    Args:
        file: what to run.
        arguments: after the descriptor of its connection.
    """

    def __init__(self, file: Path, *arguments: str) -> None:
        self._file, self._arguments = file, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, problem: Sequence[np.ndarray], seconds: float | None) -> np.ndarray | None:
        """The float64 array that answers those of ``problem``, or None where none came.

        Args:
            problem: float64 arrays.
            seconds: of wall time, after which the solver is told to end with what it has by then.

        Raises:
            RuntimeError: the process does not start, or ended by itself.
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
        """End the process, if there is one."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.close()
        self._connection, theirs = Pipe()
        with theirs:
            # -P: a module beside the file must not stand in for one of Python's own.
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
        """Whether an answer came after the signal, which is lost on a solver that does not listen yet."""
        assert self._process is not None
        end = monotonic() + GRACE
        while monotonic() < end:
            self._process.send_signal(signal.SIGVTALRM)
            if self._connection.poll(AGAIN):
                return True
        return False
