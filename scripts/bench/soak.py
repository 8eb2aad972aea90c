"""The two servers of the manual under a steady load on the loopback interface: answers, waits and memory.

    OMP_NUM_THREADS=1 python scripts/bench/soak.py [--seconds 300] [--rate 100] [--clients 4]

``tags`` is the server of docs/guide/serving.md; ``annotate`` is examples/annotate. Each works in a process of
its own. Clients keep their connections, and send seeded requests one after the other, each at most ``--rate``
divided by the number of clients a second. Every fiftieth request is wrong and must be refused. A row says how
many requests were sent and answered otherwise than expected, percentiles of the time from request to answer
in milliseconds, and the server's memory after a fifth of the time and at the end.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measuring import MIB, described, resident, show, table, told, write_csv

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.files import replacing_text, write_text

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "guide" / "serving.md"
HOST = "127.0.0.1"
# A part of the requests that a server has to refuse: one in so many.
WRONG = 50
# Instances of the table, and most instances of a request.
ROWS, MOST = 200, 20
LABELS = ("sun", "sea", "ski", "fog")

# The path, the body or None for GET, and the status of the answer.
Request = tuple[str, Any, int]


def fitted(folder: Path) -> pd.DataFrame:
    """Save a model of four labels as ``tags.safetensors``; return its table of features."""
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(ROWS, 3)), columns=["age", "height", "rain"])
    scores = X.to_numpy() @ random.normal(size=(3, 4)) + 0.5 * random.normal(size=(ROWS, 4))
    Y = pd.DataFrame((scores > 0).astype(int), columns=list(LABELS))
    LMSBNClassifier(C=10.0, random_state=0).fit(X, Y).save(folder / "tags.safetensors")
    return X


def requests(server: str, seed: int) -> Iterator[Request]:
    """The requests of one client, without end."""
    random, number = np.random.default_rng(seed), 0
    while True:
        number += 1
        row = int(random.integers(ROWS))
        is_wrong = number % WRONG == 0
        if server == "tags":
            size = int(random.integers(1, MOST + 1))
            wrong = [[[0.0]], "no rows", [[None, 1.0, 2.0]], [[]]]
            rows = random.normal(size=(size, 3)).tolist()
            yield "/tags", wrong[number // WRONG % 4] if is_wrong else rows, 422 if is_wrong else 200
        elif is_wrong:
            yield f"/rows/{ROWS + row}/accept", {}, 404
        else:
            label, value = int(random.integers(len(LABELS))), [0, 1, None][int(random.integers(3))]
            choices: list[tuple[str, Any]] = [
                (f"/rows/{row}", None),
                (f"/rows/{row}/marks", {"label": label, "value": value}),
                (f"/rows/{row}/accept", {}),
            ]
            yield *choices[number % 3], 200


@contextmanager
def served(server: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own; yield the process and the port."""
    X = fitted(folder)
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    if server == "tags":
        code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
        write_text(folder / "server.py", code)
        call = ["-m", "uvicorn", "server:app", "--host", HOST, "--port", str(port), "--log-level", "error"]
    else:
        with replacing_text(folder / "new.csv") as stream:
            X.to_csv(stream, index=False)
        call = [str(REPOSITORY / "examples" / "annotate"), "tags.safetensors", "new.csv"]
        call += ["--output", "labelled.csv", "--port", str(port)]
    with subprocess.Popen([sys.executable, *call], cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(process, port)
            yield process.pid, port
        finally:
            process.terminate()


def _wait_for(process: subprocess.Popen, port: int) -> None:
    """Return as soon as the server listens.

    Raises:
        RuntimeError: the server ended.
    """
    while process.poll() is None:
        with socket.socket() as door:
            if door.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"expected a server at port {port}, got an end with status {process.returncode}")


class Client(threading.Thread):
    """A client that sends requests for some seconds, at most one every ``pause`` seconds."""

    def __init__(self, server: str, port: int, seed: int, seconds: float, pause: float) -> None:
        super().__init__()
        self.server, self.port, self.seed, self.seconds, self.pause = server, port, seed, seconds, pause
        self.waits: list[float] = []
        self.refused = self.unexpected = 0

    def run(self) -> None:
        """Send requests one after the other."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        headers = {"Content-Type": "application/json", "Origin": f"http://{HOST}:{self.port}"}
        begun = time.perf_counter()
        for path, body, expected in requests(self.server, self.seed):
            sent = time.perf_counter()
            if sent - begun > self.seconds:
                break
            method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            answer.read()
            self.waits.append(time.perf_counter() - sent)
            self.refused += answer.status >= 400
            self.unexpected += answer.status != expected
            time.sleep(max(0.0, sent + self.pause - time.perf_counter()))
        connection.close()


def soaked(server: str, seconds: float, rate: float, clients: int) -> dict[str, Any]:
    """The row of a server.

    Args:
        server: ``tags`` or ``annotate``.
        seconds: that the load lasts.
        rate: most requests a second, of all clients together.
        clients: that work at the same time.
    """
    with tempfile.TemporaryDirectory() as name, served(server, Path(name)) as (process, port):
        workers = [Client(server, port, seed, seconds, clients / rate) for seed in range(clients)]
        for worker in workers:
            worker.start()
        time.sleep(seconds / 5)
        early = resident(process)
        for worker in workers:
            worker.join()
        late = resident(process)
    waits = 1e3 * np.concatenate([worker.waits for worker in workers])
    p50, p99, p999 = np.percentile(waits, [50, 99, 99.9])
    return {
        "server": server,
        "seconds": seconds,
        "clients": clients,
        "requests": len(waits),
        "refused": sum(worker.refused for worker in workers),
        "unexpected": sum(worker.unexpected for worker in workers),
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "most_ms": waits.max(),
        "early_mib": early / MIB,
        "late_mib": late / MIB,
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of each server")
    parser.add_argument("--rate", type=float, default=100.0, help="most requests a second")
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    rows = [
        told(soaked(server, options.seconds, options.rate, options.clients))
        for server in ("tags", "annotate")
    ]
    show(rows, "Two servers under a steady load")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
