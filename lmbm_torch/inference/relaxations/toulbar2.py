"""Worker process of toulbar2, run as a file; the first argument is the descriptor of a connection.

A problem is the bytes of four float64 arrays: the number of states of each variable; the number of variables
of each table; the variables of all tables, one table after another; and the costs of all tables, in [−1, 1]
or infinite, where a table's last variable varies fastest. The answer is the bytes of one array: the lower
bound of the loss; the loss, infinite if no labelling was found; the number of nodes; and the labelling. The
signal of toulbar2's own time limit ends a search early, with the best labelling and bound so far. The process
ends as soon as the other end of the connection is closed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from multiprocessing.connection import Connection

import numpy as np
from pytoulbar2 import CFN, pytb2  # pyright: ignore[reportAttributeAccessIssue]  # compiled

# Time limit for toulbar2 in seconds of CPU time, so long that it is never reached.
NEVER = 10**8


def solve(arrays: list[np.ndarray], decimals: int) -> np.ndarray:
    """Return the answer to one problem, as the module describes."""
    states, orders, members = (each.astype(int) for each in arrays[:3])
    pytb2.init()
    network = CFN(resolution=decimals)
    for variable, count in enumerate(states.tolist()):
        network.AddVariable(f"y{variable}", range(count))
    place = entry = 0
    for order in orders:
        scope = members[place : place + order]
        size = int(states[scope].prod())
        network.AddFunction(scope.tolist(), arrays[3][entry : entry + size].tolist())
        place, entry = place + order, entry + size
    # Only with a time limit, however long, does toulbar2 listen to the signal that ends a search.
    solution = network.Solve(timeLimit=NEVER)
    labels, loss = np.zeros(len(states)), np.inf
    if solution is not None:
        labels, loss = solution[0], solution[1]
    return np.array([network.GetDDualBound(), loss, network.GetNbNodes(), *labels])


def serve(connection: Connection, decimals: int) -> None:
    """Answer problems until the other end is closed."""
    # Ctrl-C reaches every process of a terminal, but only the calling process decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Until toulbar2 installs its own handler, this signal would end the process.
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    fcntl.fcntl(connection.fileno(), fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection.fileno(), fcntl.F_GETFL)
    connection.send_bytes(b"ready")
    while True:
        try:
            arrays = [np.frombuffer(connection.recv_bytes()) for _ in range(4)]
        except EOFError:
            return
        # No Python code runs during a search, so let SIGIO end this process if the other end is closed.
        fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)
        answer = None if connection.poll() else solve(arrays, decimals)
        fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, flags)
        if answer is None:
            return
        connection.send_bytes(answer.tobytes())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
