"""Training steps and decoding of a CRF layer, beside pytorch-crf where that is installed.

One thread, CPU time, medians in turn: the log-likelihood of a padded batch and the gradient of all inputs,
then the most probable tags.

    OMP_NUM_THREADS=1 python scripts/bench/crf_layer.py [--repeats 7]
"""

from __future__ import annotations

from importlib.util import find_spec
from statistics import median
from time import process_time
from typing import Any

import torch
from measuring import described, seconds, show, table, told, write_csv

from lmbm_torch.nn import CRF

SIZES = ((64, 50, 10), (64, 128, 26), (16, 512, 26), (8, 64, 100))


def step(layer: torch.nn.Module, emissions: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> None:
    inputs = emissions.clone().requires_grad_()
    (-layer(inputs, tags, mask)).backward()


def row(batch: int, length: int, num_tags: int, repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    layers: dict[str, Any] = {"ours": CRF(num_tags, True)}
    if find_spec("torchcrf"):
        from torchcrf import CRF as Peer  # pyright: ignore[reportMissingImports]  # not installed here

        layers["pytorch_crf"] = Peer(num_tags, batch_first=True)
        layers["pytorch_crf"].load_state_dict(layers["ours"].state_dict())
    emissions, tags = torch.randn(batch, length, num_tags), torch.randint(num_tags, (batch, length))
    mask = torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))
    for layer in layers.values():
        step(layer, emissions, tags, mask)
    decoded = {name: layer.decode(emissions, mask) for name, layer in layers.items()}
    if "pytorch_crf" in decoded and decoded["ours"] != decoded["pytorch_crf"]:
        raise AssertionError("expected both layers to decode the same tags")
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, layer in layers.items():
            calls = {
                "step": lambda layer=layer: step(layer, emissions, tags, mask),
                "decode": lambda layer=layer: layer.decode(emissions, mask),
            }
            for what, call in calls.items():
                times.setdefault(f"{name}_{what}_ms", []).append(1e3 * seconds(call, process_time))
    found = {name: round(median(values), 2) for name, values in times.items()}
    ratios = {
        f"{what}_ratio": round(found[f"ours_{what}_ms"] / found[f"pytorch_crf_{what}_ms"], 3)
        for what in ("step", "decode")
        if "pytorch_crf" in layers
    }
    return {"batch": batch, "length": length, "tags": num_tags, **found, **ratios}


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [told(row(*size, options.repeats)) for size in SIZES]
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
