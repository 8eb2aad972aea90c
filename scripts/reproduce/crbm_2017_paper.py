"""The tables of belief_propagation_in_crbms_2017 by the paper's own protocol, cell by resumable cell.

Plain steps, 256 hidden units, 50 epochs with T = 7 + epoch iterations, early stopping by the validation error
(section 6), one seed. Learning rate and batch size are chosen by the validation error of short runs: first
the rate, at the first batch size, then the size at that rate. The contrastive methods, which the paper gives
200 epochs, get at most these and as much time as MLE-BP took on the same problem: of the processor, or on a
device of the clock. Beside each cell stands the same one with centred steps, which chooses for itself.

The order of the cells is that of the protocol's groups, and within a group plain steps come first. A cell
that the time limit ends shows its best epoch so far.
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.compare.tables import Result
from lmbm_torch.files import reading, replacing, write_figure
from reproduce import crbm_epochs, crbm_problems
from reproduce.cells import Cell, OutOfTime, check_time

COLUMNS = {
    "all": "all pixels, % (paper)",
    "changed": "changed pixels, % (paper)",
    "learning_rate": "learning rate",
    "batch_size": "batch",
    "best": "best epoch",
    "ran": "epochs",
    "minutes": "minutes of the clock",
}
CHOSEN = "learning_rate", "batch_size"
CENTRED = ", centred"
# Images of Figure 2.
SHOWN = 8
# Curves of errors of at most so many times the least.
SHOWN_ERRORS = 1.75


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of all cells.

    Args:
        groups: ``{"tasks": …, "methods": …}``, in the order of the computation.
        train, validation, test: numbers of images; null for all.
        hidden: number of hidden units.
        epochs: at most; ``contrastive_epochs`` for the contrastive methods.
        short_epochs: of the runs that choose.
        patience: epochs without a better validation error after which a run ends.
        learning_rates, batch_sizes: to choose from.
        first_iters: iterations of inference in epoch 0; each further epoch has one more.
        tol: of inference in training, by which converged images end early; the paper's is 1e-3. With 1e-2 the
            gradient is off by 1 to 2 %, for three quarters of the iterations.
        init_std: initial standard deviation of couplings and hidden weights.
        penalty: of the couplings, see :class:`~reproduce.crbm_epochs.Steps`; the paper has none.
        seed: of all cells.
        device: ``cpu``, ``cuda`` or ``auto``, which is the latter where there is one.
    """

    groups: Sequence[Mapping[str, Sequence[str]]]
    train: int | None
    validation: int | None
    test: int | None
    hidden: int
    epochs: int
    contrastive_epochs: int
    short_epochs: int
    patience: int
    learning_rates: Sequence[float]
    batch_sizes: Sequence[int]
    first_iters: int
    tol: float
    warm_tol: float | None
    init_std: float
    seed: int
    device: str
    penalty: float = 0.0

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the cells, in order."""
        for group in self.groups:
            for steps in ("", CENTRED):
                for method in group["methods"]:
                    yield from ((task, method + steps) for task in group["tasks"])


def cells(folder: str, protocol: Mapping[str, Any], **_: Any) -> Iterator[Cell]:
    """Yield the cells of all groups; a contrastive method follows MLE-BP, whose time it gets."""
    settings = Protocol(**protocol)
    for task, name in settings.pairs():
        after = "MLE-BP" + CENTRED * name.endswith(CENTRED) if "CD" in name else None
        yield Cell(task, name, partial(cell, settings, folder, task, name), after=after, resumable=True)


def cell(
    settings: Protocol, folder: str, task: str, name: str, before: Result | None = None, *, state: Path
) -> Result:
    """Choose, then train; from ``state`` on, if that exists."""
    budget = math.inf if before is None else before["budget"]
    saved: dict[str, Any] = _read(state) if state.exists() else {"runs": [], "current": None}
    learner = _Learner(settings, folder, task, name)
    method = name.removesuffix(CENTRED)
    own = {"learner": method, "steps": "centred" if name.endswith(CENTRED) else "plain"}
    runs = saved["runs"]
    for choice in _short_runs(settings, runs):
        run = _Run(learner.steps(**choice), settings, saved["current"])
        run.go_on(settings.short_epochs, math.inf, lambda current: _write(state, runs, current))
        runs.append({**choice, "validation": run.best["validation"], "epochs": run.history})
        saved["current"] = None
        _write(state, runs, None)
    choice = _best_choice(runs)
    run = _Run(learner.steps(**choice), settings, saved["current"])
    epochs = settings.contrastive_epochs if "CD" in name else settings.epochs
    try:
        run.go_on(epochs, budget, lambda current: _write(state, runs, current))
    except OutOfTime:
        if run.history:
            result = run.result(learner.test, drop_weights=True)
            _write(state, runs, run.current())
            raise OutOfTime({**own, **choice, "runs": runs, **result}) from None
        raise
    return {**own, **choice, "runs": runs, **run.result(learner.test)}


def _short_runs(settings: Protocol, runs: list[Result]) -> Iterator[dict[str, Any]]:
    """Yield the settings of the short runs that ``runs``, which grows meanwhile, does not hold yet."""
    first_size, *sizes = settings.batch_sizes
    for rate in settings.learning_rates[len(runs) :]:
        yield {"learning_rate": rate, "batch_size": first_size}
    for size in sizes[len(runs) - len(settings.learning_rates) :]:
        rate = _best_choice(runs[: len(settings.learning_rates)])["learning_rate"]
        yield {"learning_rate": rate, "batch_size": size}


def _best_choice(runs: Sequence[Result]) -> dict[str, Any]:
    """Return the rate and the batch size of least validation error."""
    best = min(runs, key=lambda each: each["validation"])
    return {key: best[key] for key in CHOSEN}


class _Learner:
    """A method on a problem: makes the runs of all settings."""

    def __init__(self, settings: Protocol, folder: str, task: str, name: str) -> None:
        self.settings, self.name = settings, name
        chosen = settings.device
        if chosen == "auto":
            chosen = "cuda" if torch.cuda.is_available() else "cpu"
        data = crbm_problems.problem(task, folder, (settings.train, settings.validation, settings.test))
        part = partial(crbm_epochs.Images.part, data, device=torch.device(chosen))
        self.train, self.validation, self.test = map(part, (data.train, data.validation, data.test))

    def steps(self, learning_rate: float, batch_size: int) -> tuple[crbm_epochs.Steps, crbm_epochs.Images]:
        """Return a new model with its steps, and the images to validate with."""
        method, settings = self.name.removesuffix(CENTRED), self.settings
        options: dict[str, Any] = {"num_steps": 1} | crbm_problems.METHODS[method]
        return crbm_epochs.Steps(
            self.train,
            hidden=None if method == "LR" else settings.hidden,
            **options,
            learning_rate=learning_rate,
            batch_size=batch_size,
            is_centred=self.name.endswith(CENTRED),
            seed=settings.seed,
            init_std=settings.init_std,
            tol=settings.tol,
            warm_tol=settings.warm_tol,
            penalty=settings.penalty,
        ), self.validation


class _Run:
    """A training, epoch by epoch, that goes on from ``current``, its state after some epoch, if there is one.

    Attributes:
        history: validation error and share of converged images in percent, and seconds so far, by epoch.
        best: the epoch of least validation error, with its weights, or what :meth:`result` made of them.
    """

    def __init__(
        self,
        learner: tuple[crbm_epochs.Steps, crbm_epochs.Images],
        settings: Protocol,
        current: Mapping[str, Any] | None,
    ) -> None:
        self.steps, self.validation = learner
        self.settings = settings
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {"validation": math.inf, "epoch": 0}
        self.is_on_device = self.validation.labels.device.type != "cpu"
        if current is not None:
            self.history, self.best = [*current["history"]], dict(current["best"])
            self.steps.load(**current["steps"])
            self.steps.most_iters = current["most_iters"]

    def go_on(self, epochs: int, budget: float, save: Callable[[dict[str, Any]], None]) -> None:
        """Train until an end is reached, and save after each epoch.

        Args:
            epochs: at most.
            budget: seconds after which no epoch is begun: of the processor, or on a device of the clock.

        Raises:
            OutOfTime: another epoch would take longer than is left for the table.
        """
        # The first epoch compiles.
        needed = math.inf
        while not self._is_finished(epochs, budget):
            check_time(1.2 * needed if math.isfinite(needed) else 0.0)
            started = time.perf_counter()
            self._epoch()
            needed = min(needed, time.perf_counter() - started)
            save(self.current())

    def _is_finished(self, epochs: int, budget: float) -> bool:
        if not self.history:
            return False
        last, count = self.history[-1], len(self.history)
        has_ended = count >= epochs or last["budget"] >= budget or not math.isfinite(last["validation"])
        return has_ended or count - self.best["epoch"] >= self.settings.patience

    def _epoch(self) -> None:
        number = len(self.history)
        last = self.history[-1] if self.history else {"seconds": 0.0, "cpu_seconds": 0.0}
        num_iters = self.settings.first_iters + number
        started, started_cpu = time.perf_counter(), time.process_time()
        converged = self.steps.epoch(number, num_iters)
        validation = math.inf
        if self.steps.is_finite():
            restored = self.steps.restored(self.validation, num_iters)
            validation = 100 * crbm_epochs.error(restored, self.validation)
        seconds = last["seconds"] + time.perf_counter() - started
        cpu_seconds = last["cpu_seconds"] + time.process_time() - started_cpu
        self.history.append(
            {
                "validation": validation,
                "converged": 100 * converged,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "budget": seconds if self.is_on_device else cpu_seconds,
            }
        )
        if validation < self.best["validation"]:
            self.best = {"validation": validation, "epoch": number + 1, "weights": self.steps.weights()}

    def current(self) -> dict[str, Any]:
        """Return what the next epoch goes on from."""
        steps = self.steps.state()
        if self.best["epoch"] == len(self.history) and "weights" in self.best:
            # A file holds what is in two places once.
            self.best["weights"] = steps["weights"]
        return {
            "steps": steps,
            "history": self.history,
            "best": self.best,
            "most_iters": self.steps.most_iters,
        }

    def result(self, test: crbm_epochs.Images, drop_weights: bool = False) -> Result:
        """Return the best epoch's errors on the test images, in percent.

        Args:
            drop_weights: keep these alone of the best epoch, so that a state takes half the room.
        """
        if "weights" in self.best:
            measured = self._measured(test)
            kept = {} if drop_weights else {"weights": self.best["weights"]}
            self.best = {key: self.best[key] for key in ("validation", "epoch")} | kept | {"test": measured}
        last = self.history[-1]
        return {
            **self.best.get("test", {}),
            "validation": self.best["validation"],
            "epoch": self.best["epoch"],
            "epochs": self.history,
            **{name: last[name] for name in ("seconds", "cpu_seconds", "budget")},
        }

    def _measured(self, test: crbm_epochs.Images) -> Result:
        after = self.steps.state()
        self.steps.load(**{**after, "weights": self.best["weights"]})
        restored = self.steps.restored(test, self.settings.first_iters + self.best["epoch"] - 1)
        self.steps.load(**after)
        return {
            "all": 100 * crbm_epochs.error(restored, test),
            "changed": 100 * crbm_epochs.changed_error(restored, test),
            "_images": {
                "clean": _text(test.labels[:SHOWN]),
                "corrupted": _text(test.features[:SHOWN]),
                "restored": _text(restored[:SHOWN]),
            },
        }


def _text(images: Tensor) -> list[str]:
    """Return images of {0, 1} as strings of these."""
    return ["".join(map(str, image)) for image in images.tolist()]


def _read(state: Path) -> dict[str, Any]:
    with reading(state, zipfile.BadZipFile, RuntimeError, argument="state") as file:
        return torch.load(file, weights_only=True)


def _write(state: Path, runs: list[Result], current: dict[str, Any] | None) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    with replacing(state) as stream:
        torch.save({"runs": runs, "current": current}, stream)


def summary(results: Sequence[Result]) -> list[Result]:
    """Return one row for each cell that has been trained at all."""
    rows = []
    for result in results:
        if "all" not in result:
            continue
        # The paper's steps are plain.
        paper = crbm_problems.PAPER.get(result["data"], {}).get(result["method"], (None, None))
        ran = str(len(result["epochs"])) + " (unfinished)" * result.get("unfinished", False)
        rows.append(
            {
                "data": result["data"],
                "method": result["method"],
                "all": result["all"],
                "paper_all": paper[0],
                "changed": result["changed"],
                "paper_changed": paper[1],
                **{key: result[key] for key in CHOSEN},
                "best": result["epoch"],
                "ran": ran,
                "minutes": result["seconds"] / 60,
                "cpu_minutes": result["cpu_seconds"] / 60,
                "validation": result["validation"],
            }
        )
    return rows


def note(results: Sequence[Result], protocol: Mapping[str, Any], **_: Any) -> str:
    """Return which cells are missing, and which were ended by the time limit."""
    pairs = [*Protocol(**protocol).pairs()]
    found = {(result["data"], result["method"]): result for result in results}
    unfinished = [pair for pair in pairs if found.get(pair, {}).get("unfinished")]
    missing = [pair for pair in pairs if pair not in found]
    lines = [f"{len(pairs) - len(missing) - len(unfinished)} of {len(pairs)} cells are finished."]
    for title, some in (("Unfinished", unfinished), ("Not begun", missing)):
        by_task: dict[str, list[str]] = {}
        for task, name in some:
            by_task.setdefault(task, []).append(name.replace(CENTRED, " (centred)"))
        lines += [f"{title}, {task}: {', '.join(names)}." for task, names in by_task.items()]
    return "\n\n".join(lines)


def draw(results: Sequence[Result], folder: Path) -> None:
    """Plot Figure 2, validation errors by epoch, and Figure 4, each with plain and with centred steps."""
    # At use: the machine that trains may lack what draws.
    from lmbm_torch.viz.images import image_rows
    from reproduce.figures import error_curves

    results = [result for result in results if "all" in result]
    figures = {}
    for task, steps in dict.fromkeys((result["data"], result["steps"]) for result in results):
        own = {each["learner"]: each for each in results if (each["data"], each["steps"]) == (task, steps)}
        name = f"{task.lower().replace(' %', '').replace(' ', '_')}_{steps}"
        # One whose best epoch is worse than that would hide the differences of the others.
        worst = SHOWN_ERRORS * min(each["validation"] for each in own.values())
        lines = {
            method: _by_epoch(each, "validation")
            for method, each in own.items()
            if each["validation"] <= worst
        }
        label = f"validation error (%), {steps} steps"
        figures[f"errors_{name}"] = error_curves(lines, x_label="epoch", y_label=label)
        figures[f"figure_2_{name}"] = image_rows(_rows_of_images(own))
    lines = {
        f"{each['data']}, {each['steps']} steps": _by_epoch(each, "converged")
        for each in results
        if each["learner"] == "MLE-BP"
    }
    if lines:
        label = "training images with converged BP (%)"
        figures["figure_4"] = error_curves(lines, x_label="epoch", y_label=label)
    for name, figure in figures.items():
        write_figure(folder / f"{name}.png", figure, dpi=150)


def _by_epoch(result: Result, name: str) -> dict[float, float]:
    return {number: epoch[name] for number, epoch in enumerate(result["epochs"], 1)}


def _rows_of_images(own: Mapping[str, Result]) -> dict[str, Tensor]:
    """Return clean and corrupted images, and what each method makes of them."""
    first = next(iter(own.values()))["_images"]
    texts = {name: first[name] for name in ("clean", "corrupted")}
    texts |= {name: result["_images"]["restored"] for name, result in own.items()}
    return {name: _images(text) for name, text in texts.items()}


def _images(text: Sequence[str]) -> Tensor:
    side = math.isqrt(len(text[0]))
    return torch.tensor([[int(pixel) for pixel in image] for image in text]).view(-1, side, side)
