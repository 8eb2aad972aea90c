"""Cost of rules in a search, and savings by the labels that rules fix.

* eisen: 461 gene functions under their hierarchy, a linear network of few parents, with noise in its fields
  that breaks the hierarchy in many places; of a random order the first labels are ruled out. Searches end at
  ``--node-limit``.
* yeast: under six random rules, looked at inside branch and bound, or around it: labels of broken rules are
  held at either value, and decoded again.

CPU milliseconds a row.

    LMBM_DATA=... OMP_NUM_THREADS=1 python scripts/bench/rules.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, seconds, show, table, told, write_csv
from sklearn.impute import SimpleImputer

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints, hierarchy
from lmbm_torch.data import named
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.under_rules import constrained
from reproduce.hierarchies import read

ROWS, NOISE = 60, 0.3
FIXED = (0, 50, 150, 300)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--node-limit", type=int, default=20_000)
    arguments = parser.parse_args()
    folder = os.environ["LMBM_DATA"]
    rows = [*of_genes(folder, arguments.node_limit), *of_yeast(folder)]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Decoding under rules")


def of_genes(folder: str, node_limit: int) -> list[dict[str, Any]]:
    """Return searches of gene functions, more and more of which are ruled out."""
    data = read("eisen_funcat", folder)
    filler: Any = SimpleImputer()
    model = LMSBNClassifier(random_state=0)
    model.fit(filler.fit_transform(data.train[0]), data.train[1])
    energy = model.energy(filler.transform(data.test[0][:ROWS]))
    generator = torch.Generator().manual_seed(0)
    noise = NOISE * torch.randn(energy.unary.shape, generator=generator, dtype=energy.dtype)
    energy = replace(energy, unary=energy.unary + noise)
    names = [f"label_{label}" for label in range(energy.num_labels)]
    above = hierarchy({names[child]: names[parent] for child, parent in data.hierarchy.items()})
    order = np.random.default_rng(0).permutation(names)
    found = []
    for count in FIXED:
        rules = Constraints.of([*above, *(f"not {name}" for name in order[:count])], names)
        decode = partial(inference.decode_hinge, constraints=rules, node_limit=node_limit)
        row = {"set": "eisen, networks", "fixed": count, "how": "inside", **timed(decode, energy)}
        found.append(told(row))
    return found


def of_yeast(folder: str) -> list[dict[str, Any]]:
    """Return both ways, of networks and machines."""
    data = named.load("yeast", folder)
    X, Y = data.features, data.labels
    names = [f"label_{label}" for label in range(Y.shape[1])]
    random = np.random.default_rng(0)
    texts = ["{} -> not {}", "{} or {}", "{} -> {}"] * 2
    rules = Constraints.of([text.format(*random.choice(names, 2, replace=False)) for text in texts], names)
    found = []
    for name, model in (
        ("networks", LMSBNClassifier(random_state=0)),
        ("machines", LMBMClassifier(coupling_penalty=10.0, random_state=0)),
    ):
        energy = model.fit(X[data.train], Y[data.train]).energy(X[data.test])
        ways: dict[str, Callable[[Any], Decoding]] = {
            "inside": partial(inference.decode_hinge, constraints=rules),
            "around": lambda energy: constrained.decode_loss(energy, rules, inference.decode_hinge),
        }
        for how, decode in ways.items():
            found.append(told({"set": f"yeast, {name}", "fixed": 0, "how": how, **timed(decode, energy)}))
    return found


def timed(decode: Callable[[Any], Decoding], energy: Any) -> dict[str, Any]:
    """Return milliseconds a row of the second call, and what it says."""
    decode(energy.select(slice(0, 2)))
    came = []
    spent = seconds(lambda: came.append(decode(energy)), time.process_time)
    found = came[0]
    return {
        "ms_a_row": 1000 * spent / energy.batch_size,
        "nodes": float(found.nodes.double().mean()),
        "proven": float(found.status.exact.double().mean()),
        "mean_loss": float(found.objective.double().mean()),
    }


if __name__ == "__main__":
    main()
