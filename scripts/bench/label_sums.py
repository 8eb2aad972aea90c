"""Sums over all labellings of Boltzmann machines: by halves of the labels, and by definition.

Machines whose examples share their couplings, N(0, .3²), as LMBM and structural SVMs make them, in double
precision. Marginals, and the log partition with its gradient; enumeration is left out where it would take
minutes. CPU milliseconds of a batch.

    OMP_NUM_THREADS=1 python scripts/bench/label_sums.py [--labels 6 10 …] [--batches 1 100 …]
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import torch
from measuring import described, seconds, show, table, told, write_csv
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact

# Labellings of all examples beyond which nothing is enumerated.
MOST_ENUMERATED = 2**27


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--labels", nargs="+", type=int, default=(6, 10, 14, 18, 22))
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 100, 1000))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [told(sizes(batch, labels)) for labels in arguments.labels for batch in arguments.batches]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Sums over all labellings, milliseconds")


def sizes(batch: int, labels: int) -> dict[str, Any]:
    """Return the row of one size."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, labels, generator=generator, dtype=torch.float64)
    upper = 0.3 * torch.randn(labels, labels, generator=generator, dtype=torch.float64).triu(1)
    unary, coupling = unary.requires_grad_(), (upper + upper.mT).requires_grad_()

    def marginals() -> Tensor:
        return exact.marginals(PairwiseEnergy(unary.detach(), coupling.detach())).labels

    def gradient() -> None:
        exact.log_partition(PairwiseEnergy(unary, coupling)).sum().backward()

    row: dict[str, Any] = {"labels": labels, "rows": batch, "apart": None}
    ours = [milliseconds(work) for work in (marginals, gradient)]
    found, enumerated = marginals(), [None, None]
    if batch << labels <= MOST_ENUMERATED:
        with mock.patch("lmbm_torch.inference.enumeration.label_halves._suited", return_value=None):
            enumerated = [milliseconds(work) for work in (marginals, gradient)]
            row["apart"] = float((marginals() - found).abs().max())
    for what, own, other in zip(("marginals", "gradient"), ours, enumerated, strict=True):
        row |= {what: own, f"{what} by definition": other}
        row[f"{what}, times as long"] = None if other is None else round(other / own, 1)
    return row


def milliseconds(work: Any) -> float:
    """Return the least of three calls, after one that warms up."""
    work()
    return round(1e3 * min(seconds(work, time.process_time) for _ in range(3)), 2)


if __name__ == "__main__":
    main()
