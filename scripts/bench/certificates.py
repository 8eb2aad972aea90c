"""Certificates of real test parts: what proving and checking cost beside the decoding that they prove.

A network (LMSBN, C = 0.1, standardised features where they are dense) is trained on the training part, its
test part decoded by both rules, proven, written, and checked by ``scripts/certificate_checker``.
Largest cuts of dense graphs are decoded and proven by semidefinite bounds.
``decoding`` is the search alone, from the energy; ``checking`` is reading the file and all that is in it;
``started`` is the same with Python and NumPy to be started, by the wall clock; others are CPU time.

    python scripts/bench/certificates.py [--repeats 5] [--data scene yeast rcv1_subset1 g05_60.0 ...]
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import process_time

import torch
from dense_map import CUTS, cut_problem
from measuring import described, seconds, show, table, told, write_csv
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lmbm_torch import certificates
from lmbm_torch.data import load
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.search import branch_and_bound

CHECKER = Path(__file__).parents[1] / "certificate_checker"
sys.path.insert(0, str(CHECKER.parent))
RULES = {
    "hinge": (branch_and_bound.decode_hinge, {"margin": 1.0}),
    "log": (branch_and_bound.decode, {}),
    "score": (semidefinite.decode, {}),
}


def trained_energy(name: str):
    """Return the energy of the test part, by a network trained on the training part."""
    data = load(name)
    train, test = data.features[data.train], data.features[data.test]
    if not hasattr(train, "tocsr"):
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
    return LMSBNClassifier(C=0.1, random_state=0).fit(train, data.labels[data.train]).energy(test)


def measured(name: str, energy, rule: str, folder: Path, repeats: int) -> dict[str, object]:
    """Return one row of the table."""
    decode, options = RULES[rule]
    decoding, path = decode(energy, **options), folder / f"{name}.{rule}.jsonl"
    check = import_module("certificate_checker.__main__").main
    certificates.write(decoding, path, energy, **options)

    def checked() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert check([str(path)]) == 0

    proving = seconds(lambda: certificates.write(decoding, path, energy, **options, mode="w"), process_time)
    pairs = [
        (seconds(lambda: decode(energy, **options), process_time), seconds(checked, process_time))
        for _ in range(repeats)
    ]
    decoding_time, checking = map(statistics.median, zip(*pairs, strict=True))
    command = [sys.executable, str(CHECKER), str(path)]
    started = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    nodes = sum(json.loads(line)["proof"]["tree"]["shape"][0] for line in path.read_text().splitlines())
    return {
        "data": name,
        "rule": rule,
        "examples": energy.batch_size,
        "labels": energy.num_labels,
        "solver_nodes": int(decoding.nodes.sum()),
        "proof_nodes": nodes,
        "kilobytes": path.stat().st_size / 1024,
        "decoding_ms": 1e3 * decoding_time,
        "proving_ms": 1e3 * proving,
        "checking_ms": 1e3 * checking,
        "started_ms": 1e3 * started,
        "checking_per_decoding": checking / decoding_time,
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=["scene", "yeast", "rcv1_subset1", *CUTS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        for name in options.data:
            is_cut = name in CUTS
            energy = cut_problem(name) if is_cut else trained_energy(name)
            rules = ["score"] if is_cut else ["hinge", "log"]
            rows += [told(measured(name, energy, rule, Path(folder), options.repeats)) for rule in rules]
    show(rows, "one core")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
