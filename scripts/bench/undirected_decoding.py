"""Boltzmann machines of 15 to 100 labels decoded by branch and bound, beside HiGHS and toulbar2.

CPU milliseconds for an example on one thread, at the median and at most, the share of examples
with a proof, and the mean gap between labelling and bound as a share of the objective. ``search`` is branch
and bound under the limit of nodes of the classifiers, ``integer`` is HiGHS under a limit of time, ``network``
is toulbar2 (where it is installed; scores alone) under one of seconds; these take fewer examples.

Random machines have standard normal evidence and couplings that weigh ``coupling`` times as much together.
Trained ones are large-margin ones at their defaults on features of unit length (2,000 instances at most, the
first labels of each set); the examples are unseen ones. Training them takes minutes.

    python scripts/bench/undirected_decoding.py [--examples 30] [--few 3] [--time-limit 2]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from decoding_pairwise import gap
from measuring import described, seconds, show, table, write_csv
from sklearn.preprocessing import Normalizer

from lmbm_torch.data import load
from lmbm_torch.data.formats.npz import read_npz
from lmbm_torch.data.named import NAMED_SETS, data_folder
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators import LMBMClassifier
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.relaxations import integer_program
from lmbm_torch.inference.search import undirected_branch_and_bound

MOST_INSTANCES = 2000
CLOCK_SECONDS = 0.04
TRAINED = (
    ("yeast", 14),
    ("tmc2007_500", 22),
    ("genbase", 27),
    ("rcv1_subset1", 45),
    ("mediamill_subset", 50),
    ("mediamill_subset", 100),
    ("rcv1_subset1", 101),
)
RANDOM = tuple((labels, coupling) for labels in (15, 20, 28, 50, 100) for coupling in (0.1, 0.3, 1.0))


def random_machine(labels: int, coupling: float, examples: int) -> PairwiseEnergy:
    """Return standard normal evidence; the couplings of a label add up to a variance of ``coupling``²."""
    generator = torch.Generator().manual_seed(labels)
    unary = torch.randn(examples, labels, generator=generator).double()
    upper = torch.randn(labels, labels, generator=generator).double().triu(1) * coupling / labels**0.5
    return PairwiseEnergy(unary, upper + upper.mT)


def trained_machine(name: str, labels: int, examples: int) -> PairwiseEnergy:
    """Return unseen examples of a large-margin machine."""
    data = load(name) if name in NAMED_SETS else read_npz(data_folder() / name / f"{name}.npz")
    half = len(data.train) // 2
    train, test = (data.train, data.test) if len(data.test) else (data.train[:half], data.train[half:])
    train, test = train[:MOST_INSTANCES], test[:examples]
    scaling: Any = Normalizer()
    # Cheaper couplings than the default's, for searches are easy without strong ones.
    machine = LMBMClassifier(coupling_penalty=10.0)
    machine.fit(scaling.fit_transform(data.features[train]), data.labels[train, :labels])
    energy = machine.energy(scaling.transform(data.features[test]))
    assert isinstance(energy, PairwiseEnergy)
    return energy


def processor_ms(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of a call: the mean of enough calls for the resolution of the clock."""
    calls, spent = 0, 0.0
    while spent < CLOCK_SECONDS:
        spent += seconds(work, time.process_time)
        calls += 1
    return 1e3 * spent / calls


def measured(decode: Callable[[PairwiseEnergy], Decoding], energy: PairwiseEnergy) -> dict[str, float]:
    """Return the columns of one decoder, of examples one by one."""
    rows = [energy.select(slice(row, row + 1)) for row in range(energy.batch_size)]
    found = [decode(row) for row in rows]
    times = [processor_ms(lambda row=row: decode(row)) for row in rows]
    return {
        "ms": round(statistics.median(times), 3),
        "most_ms": round(max(times), 3),
        "proven": round(float(np.mean([each.status.exact.item() for each in found])), 2),
        "gap": round(float(np.mean([gap(each) for each in found])), 4),
    }


def compare(
    model: str, coupling: float | str, energy: PairwiseEnergy, hinge: bool, few: int, time_limit: float
) -> dict[str, object]:
    """Return one row of the table."""
    search, programme = (
        (undirected_branch_and_bound.decode_hinge, integer_program.decode_hinge)
        if hinge
        else (undirected_branch_and_bound.decode, integer_program.decode)
    )
    part = energy.select(slice(0, few))
    row: dict[str, object] = {
        "model": model,
        "labels": energy.num_labels,
        "coupling": coupling,
        "objective": "hinge" if hinge else "score",
    }
    decoders = {
        "search": (lambda each: search(each, node_limit=LIMITS.machine_nodes), energy),
        "integer": (lambda each: programme(each, time_limit=time_limit), part),
    }
    if not hinge and find_spec("pytoulbar2"):
        from lmbm_torch.inference.relaxations import cost_function_network

        seconds_at_most = max(1, round(time_limit))
        decoders["network"] = (
            lambda each: cost_function_network.decode(each, time_limit=seconds_at_most),
            part,
        )
    for name in ("search", "integer", "network"):
        given = decoders.get(name)
        columns = measured(*given) if given else dict.fromkeys(("ms", "most_ms", "proven", "gap"), "")
        row |= {f"{name}_{column}": value for column, value in columns.items()}
    print(row, flush=True)
    return row


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument("--few", type=int, default=3, help="examples of the slower decoders")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds of theirs for an example")
    arguments = parser.parse_args()
    examples, limits = arguments.examples, (arguments.few, arguments.time_limit)
    torch.set_num_threads(1)
    rows = []
    for labels, coupling in RANDOM:
        energy = random_machine(labels, coupling, examples)
        rows += [compare("random", coupling, energy, hinge, *limits) for hinge in (False, True)]
    for name, labels in TRAINED:
        energy = trained_machine(name, labels, examples)
        rows += [compare(f"trained {name}", "", energy, hinge, *limits) for hinge in (False, True)]
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "one example of a Boltzmann machine, milliseconds")


if __name__ == "__main__":
    main()
