"""Two kernels of matrix belief propagation on a CUDA device: messages streamed, or on the chip.

    python scripts/bench/matrix_bp_devices.py [--device cuda] [--repeats 7] [--output DIR]

Milliseconds of one call of ``matrix_bp.marginals`` by the clock, the device waited for, with what the host
does around the kernels: the median over calls. Weights are N(0, 0.1²) and biases N(0, 1), in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from measuring import described, median_seconds, show, table, told, write_csv

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp

# Visible and hidden units.
SIZES = (
    *((784, 256), (500, 200), (784, 64), (256, 64), (256, 256)),
    *((64, 32), (100, 100), (784, 16), (30, 30), (14, 100)),
)
BATCHES = (1, 16, 64, 256, 1024, 4096)
ITERATIONS = (10, 40)
BACKENDS = ("streaming", "resident")


def rows(device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    for visible, hidden in SIZES:
        for batch in BATCHES:
            energy = random_energy(batch, visible, hidden, device)
            for iterations in ITERATIONS:
                row = {
                    "device": torch.cuda.get_device_name(device),
                    "instances": batch,
                    "visible": visible,
                    "hidden": hidden,
                }
                row["iterations"] = iterations
                for backend in BACKENDS:
                    run = partial(matrix_bp.marginals, energy, num_iters=iterations, tol=0.0, backend=backend)
                    row[f"{backend}_ms"] = round(1e3 * seconds_to_the_end(run, device, repeats), 3)
                row["streaming/resident"] = round(row["streaming_ms"] / row["resident_ms"], 2)
                yield row


def seconds_to_the_end(run: partial[Any], device: torch.device, repeats: int) -> float:
    def finished() -> None:
        run()
        torch.cuda.synchronize(device)

    return median_seconds(finished, repeats)


def random_energy(batch: int, visible: int, hidden: int, device: torch.device) -> BipartiteEnergy:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    return BipartiteEnergy(normal(batch, visible), normal(batch, hidden), 0.1 * normal(visible, hidden))


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if options.device.type != "cuda" or not torch.cuda.is_available():
        parser.error("--device: expected a CUDA device of this machine")
    with table(options.output, options.name):
        found = [told(row) for row in rows(options.device, options.repeats)]
        write_csv(options.output / "table.csv", found)
    show(found)


if __name__ == "__main__":
    main()
