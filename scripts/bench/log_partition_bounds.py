"""The log partition of Boltzmann machines from both sides: mini-buckets beside what propagation bounds.

Distances in nats from the exact log partition where enumeration or a junction tree has it, else only the gap
between the two sides; CPU seconds for a batch, on one thread. Models are grids with couplings
between neighbours, dense machines with couplings ~ strength / sqrt(labels), and the dense machines that
``decoding_pairwise`` trains on mediamill_subset.

    python scripts/bench/log_partition_bounds.py [--examples 4] [--iterations 30]
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from decoding_pairwise import learned, random_boltzmann
from measuring import described, seconds, show, table, write_csv
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy, to_factors
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import elimination, tree_reweighted
from lmbm_torch.inference.messages import mean_field, mini_buckets

WIDTHS = (4, 8, 12)
STRENGTHS = (0.3, 1.0, 3.0)
Pair = tuple[Tensor, Tensor]


def grid(side: int, strength: float, examples: int) -> PairwiseEnergy:
    """Return a square whose neighbours are coupled by normal weights."""
    generator = torch.Generator().manual_seed(0)
    labels = side * side
    place = torch.arange(labels)
    is_next = (place[:, None] + 1 == place) & (place[:, None] % side < side - 1)
    is_below = place[:, None] + side == place
    weights = strength * torch.randn(examples, labels, labels, generator=generator, dtype=torch.float64)
    pairwise = weights * (is_next | is_below)
    unary = 0.3 * strength * torch.randn(examples, labels, generator=generator, dtype=torch.float64)
    return PairwiseEnergy(unary, pairwise + pairwise.mT)


def dense(labels: int, strength: float, examples: int) -> PairwiseEnergy:
    """Return every pair coupled."""
    energy = random_boltzmann(labels, examples)
    return PairwiseEnergy(0.3 * strength * energy.unary, strength * labels**-0.5 * energy.pairwise)


def models(examples: int) -> dict[str, PairwiseEnergy]:
    """Return the rows of the table."""
    rows = {f"grid 10 x 10, {each:g}": grid(10, each, examples) for each in STRENGTHS}
    for labels in (20, 40, 80):
        rows |= {f"dense {labels}, {each:g}": dense(labels, each, examples) for each in STRENGTHS}
    trained = learned("mediamill_subset", 50)[0]
    return rows | {"trained mediamill_subset, 50 labels": trained.select(slice(0, examples))}


def exactly(energy: PairwiseEnergy) -> Tensor | None:
    """Return the log partition, where it can be had."""
    if energy.num_labels <= 20:
        return exact.log_partition(energy)
    return elimination.log_partition(energy) if elimination.is_narrow(energy, 16) else None


def propagation(energy: PairwiseEnergy) -> Pair:
    above = tree_reweighted.marginals(to_factors(energy))
    return mean_field.marginals(energy).log_partition, above.log_partition


def of_width(width: int, iterations: int) -> Callable[[PairwiseEnergy], Pair]:
    def sides(energy: PairwiseEnergy) -> Pair:
        found = mini_buckets.bounds(energy, width=width, num_iters=iterations)
        return found.lower, found.upper

    return sides


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods: dict[str, Callable[[PairwiseEnergy], Pair]] = {"propagation": propagation}
    methods |= {f"width {width}": of_width(width, arguments.iterations) for width in WIDTHS}
    rows = []
    for name, energy in models(arguments.examples).items():
        known = exactly(energy)
        for method, sides in methods.items():
            found: list[Pair] = []
            spent = seconds(
                lambda sides=sides, energy=energy, found=found: found.append(sides(energy)), time.process_time
            )
            lower, upper = found[0]
            row = {"model": name, "method": method, "gap": round((upper - lower).mean().item(), 3)}
            row["below"] = "" if known is None else round((known - lower).mean().item(), 3)
            row["above"] = "" if known is None else round((upper - known).mean().item(), 3)
            rows.append(row | {"s": round(spent, 2)})
            print(rows[-1], flush=True)
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "bounds on the log partition, nats")


if __name__ == "__main__":
    main()
