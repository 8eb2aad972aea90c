"""Numbers of labels at which one routine overtakes the next: ``inference.common.limits.LIMITS``.

CPU milliseconds for an example of a batch, on one thread, and the share of examples with a
proof within the default limit of nodes. Models are random: standard normal evidence, couplings that together
weigh as much. ``kernel`` and ``plain`` are enumeration, compiled and not; ``search`` is branch and bound,
``programme`` integer programming, ended after two seconds; ``semidefinite`` the search by semidefinite
bounds; ``dual`` is dual decomposition; ``tree`` is elimination by a junction tree along a band of couplings
of that width. Enumeration is left out where a batch would take minutes.

    python scripts/bench/cutoffs.py [--examples 10]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from decoding_pairwise import processor_ms, random_boltzmann
from measuring import described, show, table, write_csv

from lmbm_torch.energies import BipartiteEnergy, PairwiseEnergy
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination
from lmbm_torch.inference.messages import dual_decomposition
from lmbm_torch.inference.relaxations import integer_program
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.search import undirected_branch_and_bound

TIME_LIMIT = 2.0
FEW = 2
SLOW = ("programme", "semidefinite")


def timed(work: Callable[[], object], examples: int, repeats: int = 2) -> tuple[float, object]:
    """Return milliseconds an example after a first call, and what that call returned."""
    found = work()
    return round(processor_ms(work, examples, repeats), 4), found


def proven(found: object) -> float | str:
    """Return the share of examples with a proof, of a decoding."""
    return round(float(found.status.exact.double().mean()), 2) if isinstance(found, Decoding) else ""


def machines(labels: int, examples: int) -> list[dict[str, object]]:
    """Return scores and hinge losses of Boltzmann machines."""
    shared = random_boltzmann(labels, examples)
    own = PairwiseEnergy(shared.unary, shared.pairwise.expand(examples, -1, -1).contiguous())
    few, search = shared.select(slice(0, FEW)), undirected_branch_and_bound
    limits = {"node_limit": LIMITS.machine_nodes}
    score = {
        "kernel": (lambda: exact.decode(shared), examples, 20),
        "plain": (lambda: exact.decode(own), examples, 14),
        "search": (lambda: search.decode(shared, **limits), examples, 44),
        "programme": (lambda: integer_program.decode(few, time_limit=TIME_LIMIT), FEW, 30),
        "semidefinite": (lambda: semidefinite.decode(few), FEW, 44),
    }
    hinge = {
        "plain": (lambda: exact.decode_hinge(shared), examples, 14),
        "search": (lambda: search.decode_hinge(shared, **limits), examples, 30),
        "programme": (lambda: integer_program.decode_hinge(few, time_limit=TIME_LIMIT), FEW, 30),
    }
    return [rows_of("score", labels, score), rows_of("hinge", labels, hinge)]


def restricted(labels: int, examples: int) -> dict[str, object]:
    """Return marginal MAP of restricted Boltzmann machines with as many hidden units as labels."""
    generator = torch.Generator().manual_seed(labels)
    visible, hidden, coupling = (
        torch.randn(*shape, generator=generator).double() * scale
        for shape, scale in (
            ((examples, labels), 1.0),
            ((examples, labels), 1.0),
            ((labels, labels), 2 / labels**0.5),
        )
    )
    energy = BipartiteEnergy(visible, hidden, coupling)
    return rows_of(
        "marginal MAP",
        labels,
        {
            "plain": (lambda: exact.marginal_map(energy), examples, 16),
            "dual": (lambda: dual_decomposition.marginal_map(energy), examples, 30),
        },
    )


def banded(labels: int, width: int, examples: int) -> dict[str, object]:
    """Return marginals of a Boltzmann machine whose labels are coupled to the next few."""
    dense = random_boltzmann(labels, examples)
    energy = PairwiseEnergy(dense.unary, dense.pairwise.triu(-width).tril(width))
    routines = {
        "plain": (lambda: exact.marginals(energy), examples, 14),
        "tree": (lambda: elimination.marginals(energy), examples, 30),
    }
    return rows_of(f"marginals, width {width}", labels, routines)


def rows_of(task: str, labels: int, routines: dict[str, tuple[Callable, int, int]]) -> dict[str, object]:
    """Return one row of the table: every routine that is not hopeless for so many labels."""
    row: dict[str, object] = {"task": task, "labels": labels}
    for name in ("kernel", "plain", "search", "programme", "semidefinite", "dual", "tree"):
        row[f"{name}_ms"] = row[f"{name}_proven"] = ""
        if name in routines and labels <= routines[name][2]:
            work, examples, _ = routines[name]
            row[f"{name}_ms"], found = timed(
                work, examples, 1 if name in ("programme", "semidefinite") else 2
            )
            row[f"{name}_proven"] = proven(found)
    print(row, flush=True)
    return row


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=10)
    arguments = parser.parse_args()
    examples = arguments.examples
    torch.set_num_threads(1)
    rows = []
    for labels in (6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 36, 44):
        rows += machines(labels, examples)
    rows += [restricted(labels, examples) for labels in (8, 12, 14, 16, 18, 20)]
    rows += [banded(labels, width, examples) for width in (2, 8) for labels in (10, 14, 20)]
    rows.sort(key=lambda row: str(row["task"]))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "one example, milliseconds")


if __name__ == "__main__":
    main()
