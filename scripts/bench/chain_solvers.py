"""Five solvers of one max-margin Markov network: a fold of the handwritten words, linear, one objective.

    ½‖w‖² + C Σ_x max_y [Hamming(y_x, y) + score(x, y) − score(x, y_x)]

Frank–Wolfe on the weights, L-BFGS on smoothed hinges, SMO and exponentiated gradient on the factored dual,
each to a certified relative duality gap, and stochastic subgradients with Adam, which certify nothing: their
value is set against the largest dual value of the others. Seconds are on the clock and of the processor, all
threads together.

The larger C, the longer exponentiated gradient takes for its last digits: at C = 1 fifty passes leave a gap
of 0.2, where SMO leaves 0.007.

Then the first two alone on ever longer texts: 5,000 positions of random chains of 5 labels and 20 features,
of 5 to 2,500 each, to 1e-3, Frank–Wolfe for 100 passes at most; and on the shortest with columns of unlike
units, three decades apart, or all of them ten units from zero.

    python scripts/bench/chain_solvers.py [--fold 0] [--C 0.1] [--tol 5e-4] [--epochs 60]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, show, table, told, write_csv
from sklearn.preprocessing import normalize

from lmbm_torch.data import SequenceData, load_ocr_letters
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.losses import chain_structured_hinge
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.linear import ChainMargins
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe, smoothing

BATCH_SIZE = 32


def certified(
    data: SequenceData, C: float, solver: Any, problem: Callable[..., Any], tol: float, most: int = 10_000
) -> dict:
    """Return a solver's objective, dual value and gap on all of the data."""
    state = run(
        solver,
        problem(data.features, data.labels, data.start, num_states=len(data.label_names), C=C),
        tol=tol,
        max_iter=most,
    )
    return {
        "objective": float(state.primal),
        "dual": float(state.dual),
        "gap": state.gap,
        "passes": state.num_iters,
    }


def inner_products(features: np.ndarray, labels: np.ndarray, start: np.ndarray, **settings) -> Any:
    return ChainKernelProblem(features @ features.T + 1, labels, start, **settings)


def subgradients(data: SequenceData, C: float, epochs: int) -> dict:
    """Return the objective at the weights that Adam ends with, its rate falling to zero."""
    states, count, generator = len(data.label_names), data.num_sequences, torch.Generator().manual_seed(0)
    head = torch.nn.Linear(data.features.shape[1], states).double()  # pyright: ignore[reportOptionalSubscript]
    weights = [*head.parameters(), torch.zeros(states, states, dtype=torch.float64, requires_grad=True)]
    for each in weights:
        torch.nn.init.zeros_(each)
    features, labels = data.select(np.full(count, True))
    chains, truths = (
        [torch.from_numpy(each).double() for each in features],
        [*map(torch.from_numpy, labels)],
    )

    def losses(rows: list[int]) -> torch.Tensor:
        lengths = torch.tensor([len(truths[row]) for row in rows])
        unary, labels = (
            torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=PADDING)
            for parts in ([head(chains[row]) for row in rows], [truths[row] for row in rows])
        )
        return chain_structured_hinge(ChainEnergy(unary, weights[-1], lengths), labels).sum()

    def penalty() -> torch.Tensor:
        return 0.5 * sum((each.square().sum() for each in weights), torch.zeros(()))

    optimizer = torch.optim.Adam(weights, lr=0.03)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(BATCH_SIZE):
            optimizer.zero_grad()
            # An estimate of the objective, divided by the number of chains.
            (penalty() / count + C * losses(rows.tolist()) / len(rows)).backward()
            optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return {"objective": float(penalty() + C * losses([*range(count)])), "passes": epochs}


def compare(data: SequenceData, C: float, tol: float, epochs: int) -> list[dict[str, Any]]:
    """Return one row for each solver."""
    solvers: dict[str, Callable[[], dict]] = {
        "Frank–Wolfe": partial(certified, data, C, frank_wolfe, chain_problem, tol),
        "smoothed hinges": partial(certified, data, C, smoothing, ChainMargins, tol),
        "SMO": partial(certified, data, C, smo, inner_products, tol),
        "exponentiated gradient": partial(certified, data, C, exponentiated_gradient, inner_products, tol),
        "subgradients, Adam": partial(subgradients, data, C, epochs),
    }
    return timed("words", solvers)


def along_lengths(C: float, positions: int = 5_000) -> list[dict[str, Any]]:
    """Return two rows for each length of chains, and for other units of the shortest chains."""
    every = [random_chains(positions // length, length) for length in (5, 50, 500, 2500)]
    features = np.asarray(every[0].features)
    apart, shifted = features * np.logspace(-1.5, 1.5, features.shape[1]), features + 10.0
    every.append(replace(every[0], name="chains of 5, three decades", features=apart))
    every.append(replace(every[0], name="chains of 5, far from zero", features=shifted))
    rows = []
    for data in every:
        solvers = {
            "Frank–Wolfe": partial(certified, data, C, frank_wolfe, chain_problem, 1e-3, 100),
            "smoothed hinges": partial(certified, data, C, smoothing, ChainMargins, 1e-3, 1000),
        }
        rows += timed(data.name, solvers)
    return rows


def random_chains(count: int, length: int, states: int = 5, width: int = 20) -> SequenceData:
    """Return chains drawn from a conditional random field."""
    random = np.random.default_rng(0)
    transition, weights = random.normal(size=(states, states)), random.normal(size=(states, width))
    features = random.normal(size=(count * length, width))
    labels, scores = np.empty(count * length, np.int64), 0.7 * features @ weights.T
    for t in range(len(labels)):
        odds = np.exp(scores[t] + (transition[labels[t - 1]] if t % length else 0))
        labels[t] = random.choice(states, p=odds / odds.sum())
    return SequenceData(
        name=f"chains of {length}",
        features=features,
        labels=labels,
        start=np.arange(0, len(labels) + 1, length),
        label_names=tuple(f"label {k}" for k in range(states)),
        feature_names=tuple(f"feature {k}" for k in range(width)),
        fold=np.zeros(count, np.int64),
    )


def timed(data: str, solvers: dict[str, Callable[[], dict]]) -> list[dict[str, Any]]:
    """Return one row for each solver; ``above_bound`` is relative to the largest dual value."""
    rows = []
    for name, solve in solvers.items():
        clock, processor = time.perf_counter(), time.process_time()
        found = {"data": data, "solver": name, "objective": None, "dual": None, "gap": None, **solve()}
        found["seconds"] = round(time.perf_counter() - clock, 1)
        found["processor_seconds"] = round(time.process_time() - processor, 1)
        rows.append(told(found))
    bound = max(row["dual"] for row in rows if row["dual"] is not None)
    return [{**row, "above_bound": row["objective"] / bound - 1} for row in rows]


def fold_of(data: SequenceData, fold: int, num_words: int | None = None) -> SequenceData:
    """Return the words of one fold alone, or the first of them, every image scaled to length 1."""
    words = np.flatnonzero(data.fold == fold)[:num_words]
    features, labels = data.select(words)
    lengths = [len(each) for each in labels]
    return replace(
        data,
        features=normalize(np.concatenate(features)),
        labels=np.concatenate(labels),
        start=np.concatenate([[0], np.cumsum(lengths)]),
        fold=np.zeros(len(words), np.int64),
    )


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--C", type=float, default=0.1)
    parser.add_argument("--tol", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    data = fold_of(load_ocr_letters(), options.fold)
    rows = compare(data, options.C, options.tol, options.epochs) + along_lengths(1.0)
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
