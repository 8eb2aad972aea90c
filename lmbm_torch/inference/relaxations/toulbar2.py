"""Worker process of toulbar2: run as a file, with the descriptor of a connection as argument.

Each problem comes as the bytes of four float64 arrays: the variables' numbers of states, the tables'
numbers of variables, the variables of all tables one after another, and the tables' costs, within [−1, 1]
or infinite, a table's last variable running fastest. An answer is the bytes of one array: the lower bound
of the loss, the loss, infinite without a labelling, the number of nodes, and the labelling. A search ends
early, with the best labelling and bound so far, at the signal of toulbar2's own time limit. The process
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

# Seconds of CPU time after which toulbar2 would end by itself.
NEVER = 10**8


def solve(arrays: list[np.ndarray], decimals: int) -> np.ndarray:
    """Return the answer to one problem."""
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
    # Given a limit toulbar2 listens to the signal.
    solution = network.Solve(timeLimit=NEVER)
    labels, loss = np.zeros(len(states)), np.inf
    if solution is not None:
        labels, loss = solution[0], solution[1]
    return np.array([network.GetDDualBound(), loss, network.GetNbNodes(), *labels])


def serve(connection: Connection, decimals: int) -> None:
    """Report answers to problems until the other end is closed."""
    # Ctrl-C reaches every process of a terminal; the calling process decides about this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before toulbar2 listens, the signal would end this process.
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    fcntl.fcntl(connection.fileno(), fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection.fileno(), fcntl.F_GETFL)
    connection.send_bytes(b"ready")
    while True:
        try:
            arrays = [np.frombuffer(connection.recv_bytes()) for _ in range(4)]
        except EOFError:
            return
        # No Python code runs during a search: SIGIO ends this process if the other end is closed.
        fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)
        answer = None if connection.poll() else solve(arrays, decimals)
        fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, flags)
        if answer is None:
            return
        connection.send_bytes(answer.tobytes())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
