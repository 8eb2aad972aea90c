"""Errors of MLE-BP's gradients against the fixed point, by the tolerance and the start of the messages.

Noisy MNIST, 256 hidden units, T = 10, plain steps in batches of 100. ``error`` is the root mean square
distance of a batch's gradient from that of converged propagation, as a share of the batches' own noise about
their mean; ``bias`` the length of the mean difference, as a share of that mean's. Messages start from
nothing, from those that the same images had an epoch before (4 bytes for every coupling and image), or from
what the hidden units' beliefs of an epoch before would tell (4 for every hidden unit and image).

python scripts/bench/crbm_gradients.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from measuring import described, show, table, write_csv
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import BipartiteMarginals, BipartiteMessages
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels.matrix_bp.plain import sum_gain
from reproduce.crbm_epochs import Images, Steps
from reproduce.crbm_problems import problem

NUM_ITERS, BATCH = 10, 100
SETTINGS: dict[str, Any] = {
    "hidden": 256,
    "num_steps": 1,
    "learning_rate": 0.05,
    "is_centred": False,
    "seed": 0,
    "init_std": 0.01,
}
Start = Callable[[BipartiteMarginals, BipartiteEnergy], Tensor | None]


def of_beliefs(before: BipartiteMarginals, energy: BipartiteEnergy) -> Tensor:
    """Return the messages of hidden units with these beliefs to the visible units."""
    fields = before.hidden.logit(1e-7)[:, None].expand(-1, energy.num_visible, -1)
    return sum_gain(fields, energy.coupling)


def of_messages(before: BipartiteMarginals, energy: BipartiteEnergy) -> Tensor:
    """Return the messages of the epoch before."""
    assert before.messages is not None
    return before.messages.to_visible


STARTS: dict[str, Start] = {
    "nothing": lambda before, energy: None,
    "messages": of_messages,
    "beliefs": of_beliefs,
}


class Gradients:
    """Gradients of some batches at the present weights."""

    def __init__(self, steps: Steps, batches: Sequence[Tensor]) -> None:
        self.steps, self.batches = steps, batches

    def _propagated(self, **options: Any) -> Iterator[tuple[Tensor, Tensor, BipartiteEnergy, Any]]:
        starts = options.pop("starts", None)
        for number, rows in enumerate(self.batches):
            features, labels = self.steps.images.batch(rows)
            energy = self.steps._energy(features)
            start = None if starts is None else starts(number, energy)
            messages = None if start is None else BipartiteMessages(start, start)
            found = matrix_bp.marginals(energy, messages=messages, keep_messages=True, **options)
            yield features, labels, energy, found

    def results(self) -> list[BipartiteMarginals]:
        """Return what a training has found when it has been here."""
        return [found for *_, found in self._propagated(num_iters=NUM_ITERS, tol=1e-3)]

    def all(self, **options: Any) -> tuple[Tensor, float]:
        """Return the gradients, one row for each batch, and the iterations of an image."""
        gradients, iterations = [], []
        for features, labels, energy, found in self._propagated(**options):
            hidden = energy.hidden_given_visible(labels)
            by_visible, by_hidden = found.visible - labels, found.hidden - hidden
            parts = (
                by_visible.mT @ features,
                by_hidden.mT @ features,
                found.pairwise().sum(0) - labels.mT @ hidden,
                by_visible.sum(0),
                by_hidden.sum(0),
            )
            gradients.append(torch.cat([part.flatten() for part in parts]) / len(labels))
            iterations.append(found.status.num_iters.double().mean())
        return torch.stack(gradients), float(torch.stack(iterations).mean())


@torch.no_grad()
def gradients(images: Images, epochs: Sequence[int], tolerances: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield rows of the first table."""
    steps = Steps(images, method="mle_bp", batch_size=BATCH, **SETTINGS)
    batches = torch.arange(6 * BATCH).split(BATCH)
    done = 0
    for count in epochs:
        for number in range(done, count - 1):
            steps.epoch(number, NUM_ITERS)
        before = Gradients(steps, batches).results()
        steps.epoch(count - 1, NUM_ITERS)
        done = count
        now = Gradients(steps, batches)
        exact, _ = now.all(num_iters=300, tol=1e-6)
        mean = exact.mean(0)
        noise = (exact - mean).square().sum(1).mean().sqrt()
        for name, start in STARTS.items():
            for tol in tolerances:
                found, iterations = now.all(
                    num_iters=NUM_ITERS,
                    tol=tol,
                    starts=lambda place, energy, start=start, before=before: start(before[place], energy),
                )
                off = found - exact
                yield {
                    "epochs": count,
                    "start": name,
                    "tol": tol,
                    "iterations": round(iterations, 2),
                    "error": round(float(off.square().sum(1).mean().sqrt() / noise), 3),
                    "bias": round(float(off.mean(0).norm() / mean.norm()), 3),
                }


def main() -> None:
    """Measure, print and write."""
    parser = described(__file__, __doc__)
    parser.add_argument("--images", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-3, 1e-2, 3e-2])
    parser.add_argument("--data", default=os.environ.get("LMBM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = problem("noisy MNIST 10 %", options.data, (options.images, 0, 0))
    images = Images.part(data, data.train, torch.device("cpu"))
    rows = []
    for row in gradients(images, options.epochs, options.tolerances):
        rows.append(row)
        print(row, flush=True)
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
