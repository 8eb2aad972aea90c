"""Reports as one page of HTML with figures, or as markdown with a folder of figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import Mode, check_free, write_figure, write_text
from lmbm_torch.prediction.findings import Findings, advice
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.shapes import Float, Int
from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap
from lmbm_torch.viz.quality import bar_chart, change_chart, label_chart, node_histogram, reliability_diagram

# Confidence intervals of the metrics: level, number of bootstrap samples, and seed.
LEVEL, NUM_RESAMPLES, SEED = 0.95, 1000, 0
# Largest number of units that the bootstrap draws. If there are more rows, they are divided into this number
# of random groups, and groups are drawn, with the same variance of sums.
MAX_GROUPS = 5000
NUM_PULLS = 10
NUM_EXAMPLES = 12
# Largest number of rows of an automatic choice's table that a report shows.
MAX_ROWS = 40
# The metrics at the top of a report, in words.
METRICS = {
    "exact_match": "rows entirely right",
    "hamming_loss": "share of wrong decisions",
    "sample_f1": "F1, mean over rows",
    "macro_f1": "F1, mean over labels",
    "micro_f1": "F1, all decisions",
    "jaccard_index": "Jaccard index, mean over rows",
}


def intervals(
    given: Int[Tensor, "rows labels"], truth: Int[Tensor, "rows labels"]
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each headline metric: percentiles of 1,000 bootstrap samples of the rows.

    Every call draws the same samples. Rows count as independent; the interval does not cover the variation
    between trainings, and has no width if all rows are equal.

    Args:
        given, truth: labels in {0, 1}.

    Returns:
        Both ends of the interval for ``exact_match``, ``hamming_loss``, ``sample_f1``, ``macro_f1``,
        ``micro_f1`` and ``jaccard_index``.
    """
    random = np.random.default_rng(SEED)
    sums = _Sums.of(given, truth, random)
    drawn = metrics_of(sums.drawn(random))
    tail = 50 * (1 - LEVEL)
    ends = {name: np.percentile(values, [tail, 100 - tail]) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


class _Sums:
    """Sums over each group of rows, from which the metrics are computed.

    Args:
        of_rows: (groups, 7), sums over rows of: 1, exact match, share of wrong decisions, F1, Jaccard index,
            number of labels both true and given, number of true labels plus number of given labels.
        both, either: (groups, labels), for each label the last two of these sums.
    """

    def __init__(
        self,
        of_rows: Float[np.ndarray, "groups 7"],
        both: Float[np.ndarray, "groups labels"],
        either: Float[np.ndarray, "groups labels"],
    ) -> None:
        self.of_rows, self.both, self.either = of_rows, both, either

    @classmethod
    def of(cls, given: Tensor, truth: Tensor, random: np.random.Generator) -> _Sums:
        """Return the sums for given and true labels; if rows are grouped, the groups are random."""
        found, wanted = (labels.bool().cpu().numpy() for labels in (given, truth))
        both, either = (found & wanted).astype(np.float64), found.astype(np.float64) + wanted
        in_both, in_either = both.sum(1), either.sum(1)
        # Rows without true and without given labels count as right.
        f1 = np.where(in_either == 0, 1.0, 2 * in_both / np.maximum(in_either, 1))
        union = in_either - in_both
        jaccard = np.where(union == 0, 1.0, in_both / np.maximum(union, 1))
        wrong = (found != wanted).mean(1)
        of_rows = np.stack([np.ones(len(f1)), wrong == 0, wrong, f1, jaccard, in_both, in_either], 1)
        if len(of_rows) <= MAX_GROUPS:
            return cls(of_rows, both, either)
        order = random.permutation(len(of_rows))
        starts = np.linspace(0, len(order), MAX_GROUPS, endpoint=False).astype(np.int64)
        return cls(*(np.add.reduceat(each[order], starts) for each in (of_rows, both, either)))

    def drawn(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums over bootstrap samples of the groups: (samples, …) each."""
        groups = len(self.of_rows)
        places = random.integers(groups, size=(NUM_RESAMPLES, groups))
        places += groups * np.arange(NUM_RESAMPLES)[:, None]
        counts = np.bincount(places.ravel(), minlength=NUM_RESAMPLES * groups).astype(np.float64)
        counts = counts.reshape(NUM_RESAMPLES, groups)
        return counts @ self.of_rows, counts @ self.both, counts @ self.either


def metrics_of(sums: tuple[np.ndarray, np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """Return each metric (samples,), computed from sums as :mod:`lmbm_torch.metrics` defines it."""
    (rows, right, wrong, f1, jaccard, both, either), of_labels = sums[0].T, sums[1:]
    return {
        "exact_match": right / rows,
        "hamming_loss": wrong / rows,
        "sample_f1": f1 / rows,
        "macro_f1": (2 * of_labels[0] / np.maximum(of_labels[1], 1)).mean(1),
        "micro_f1": 2 * both / np.maximum(either, 1),
        "jaccard_index": jaccard / rows,
    }


class Measured(NamedTuple):
    """A metric of joint labels, marginal labels and a baseline.

    Args:
        name, words: the name of the metric and a description.
        joint: the value for the joint labels; ``low`` and ``high`` are the ends of the 95 % interval.
        alone: the value for the marginal labels, which are decided label by label.
        without: the value for the baseline, which uses no features.
    """

    name: str
    words: str
    joint: float
    alone: float
    low: float
    high: float
    without: float


@dataclass(frozen=True)
class Report:
    """The content of a page.

    Args:
        content: the values of the templates, by name.
        figures: the matplotlib figures by name; figures that would be empty are left out.
        template: the name of the templates.
    """

    content: dict[str, Any]
    figures: dict[str, Any]
    template: str = "report"


def report(title: str, saved: Predictor, found: Findings, bound: Sequence[Sequence[str]] = ()) -> Report:
    """Return the report on findings.

    Args:
        title: the title, such as the names of the model and the rows.
        saved: the predictor.
        found: the findings.
        bound: for each row the rules that changed the answer; empty if there are no rules.
    """
    metrics, without, ends = found.metrics(), found.baseline(), intervals(found.joint, found.truth)
    gained, lost = found.rows_gained_and_lost()
    by_label = found.by_label()
    joint = found.joint_calibration()
    content = {
        "title": title,
        "kind": saved.kind,
        "num_rows": len(found.truth),
        "num_labels": len(found.label_names),
        "proven": int(found.exact.sum()),
        "method": found.method,
        "metrics": [
            Measured(name, words, *metrics[name], *ends[name], without[name])
            for name, words in METRICS.items()
        ],
        "is_training_known": found.share_in_training is not None,
        "advice": advice(saved, found, ends),
        "feature_pulls": _feature_pulls(found),
        "pulls": _pulls(found),
        "is_directed": found.dependencies is not None and found.dependencies.ordering is not None,
        "dependency_kind": None if found.dependencies is None else found.dependencies.kind,
        "labels": [
            {"name": name, **{key: values[k] for key, values in by_label.items()}}
            for k, name in enumerate(found.label_names)
        ],
        "calibration_error": found.calibration().error,
        "joint_calibration_error": None if joint is None else joint.error,
        "brier_score": found.brier_score(),
        "num_changed": len(found.changed_rows),
        "gained": gained,
        "lost": lost,
        "mended": int(found.mended.sum()),
        "broken": int(found.broken.sum()),
        "sign_test": found.sign_test(),
        "examples": _examples(found),
        "bound": _by_rule(bound),
        "explained": None if found.explained is None else found.explained[0],
        "because": [] if found.explained is None else list(found.explained[1].rows()),
        "remarks": [] if found.explained is None else found.explained[1].remarks(),
    }
    return Report(content, _figures(found, by_label))


def choice_report(title: str, model: Any) -> Report:
    """Return the page of a fitted ``AutoLabelClassifier``, for :func:`write_html` and :func:`write_markdown`.

    Args:
        title: the title, such as the name of the table.
        model: the fitted classifier.

    Raises:
        ValueError: ``model`` is no ``AutoLabelClassifier``, or is not fitted.
    """
    # Imported here, since no other page needs this module.
    from lmbm_torch.estimators.automatic.classifier import AutoLabelClassifier

    if not isinstance(model, AutoLabelClassifier) or "table_" not in vars(model):
        raise ValueError(f"model: expected a fitted AutoLabelClassifier, got {type(model).__name__}")
    rows = [{**row, "decoder": row["decoder"] or "its own"} for row in model.table_]
    others = [row for row in rows if not row["weight"]]
    most = max(row["folds"] for row in rows)
    compared = [row for row in others if row["folds"] == most and row["instances"] == rows[0]["instances"]]
    families: dict[str, float] = {}
    for row in rows:
        families[row["family"]] = max(row["score"], families.get(row["family"], 0.0))
    content = {
        "title": title,
        "metric": model.metric,
        "score": model.best_score_,
        "rule": None if model.rule_ is None else str(model.rule_),
        "members": [row for row in rows if row["weight"]],
        "next_best": max(compared, key=lambda row: row["score"], default=None),
        "rows": rows[:MAX_ROWS],
        "num_tried": len(rows),
    }
    return Report(content, {"families": bar_chart({model.metric: families})}, "choice")


def write_html(page: Report, path: Path, mode: Mode = "x") -> None:
    """Write a page as one self-contained file of HTML.

    Args:
        page: the page.
        path: the file.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the file cannot be written.
    """
    check_free(path, mode)
    figures = {
        name: f"data:image/png;base64,{base64.b64encode(_png(figure)).decode()}"
        for name, figure in page.figures.items()
    }
    _write(path, f"{page.template}.html.jinja", {**page.content, "figures": figures}, mode)


def write_markdown(page: Report, path: Path, mode: Mode = "x") -> None:
    """Write a page as markdown, with the figures in a folder ``<name>_figures``.

    Args:
        page: the page.
        path: the file.
        mode: as in ``open``: by default neither file nor folder is overwritten.

    Raises:
        FileExistsError: file or folder exists, in mode ``"x"``.
        OSError: file or folder cannot be written.
    """
    folder = path.with_name(f"{path.stem}_figures")
    check_free(path, mode)
    check_free(folder, mode)
    folder.mkdir(exist_ok=mode == "w")
    figures = {}
    for name, figure in page.figures.items():
        write_figure(folder / f"{name}.png", figure, dpi=110)
        figures[name] = f"{folder.name}/{name}.png"
    _write(path, f"{page.template}.md.jinja", {**page.content, "figures": figures}, mode)


def card(page: Report, dataset: str) -> Report:
    """Return a report as a model card with the metadata that model hubs read, for :func:`write_markdown`.

    Args:
        page: the page of :func:`report`.
        dataset: the name of the rows.
    """
    return replace(page, template="card", content=page.content | {"dataset": dataset})


def _by_rule(bound: Sequence[Sequence[str]]) -> list[tuple[str, int, str]]:
    """Return the rules that changed answers, most frequent first: rule, number of rows, first rows."""
    rows: dict[str, list[str]] = {}
    for row, texts in enumerate(bound):
        for text in texts:
            rows.setdefault(text, []).append(str(row))
    by_rule = sorted(rows.items(), key=lambda each: -len(each[1]))
    shown = ((text, found, found[:NUM_EXAMPLES]) for text, found in by_rule)
    return [
        (text, len(found), ", ".join(first) + ", …" * (len(found) > len(first)))
        for text, found, first in shown
    ]


def _write(path: Path, template: str, content: dict[str, Any], mode: Mode) -> None:
    with naming_extras():
        from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lmbm_torch.reports", "."),
        autoescape=".html" in template,
        # HTML tags are removed, because programs that show Markdown also interpret HTML.
        finalize=None if ".html" in template else _without_tags,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _markdown_cell
    write_text(path, environment.get_template(template).render(content), mode)


def _without_tags(value: Any) -> Any:
    return value.replace("<", "&lt;") if isinstance(value, str) else value


def _markdown_cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def _figures(found: Findings, by_label: dict[str, np.ndarray]) -> dict[str, Any]:
    names = found.label_names
    figures = {}
    pulls = found.dependencies
    if pulls is not None and pulls.ordering is not None:
        figures["dependencies"] = dependency_heatmap(pulls.weights, names, pulls.ordering)
    elif pulls is not None:
        figures["dependencies"] = coupling_heatmap(pulls.weights, names)
    shares = {"F1": by_label["f1"], "precision": by_label["precision"], "recall": by_label["recall"]}
    figures["labels"] = label_chart(names, by_label["true"], shares)
    panels = {"each label": found.calibration(), "the whole labelling": found.joint_calibration()}
    figures["calibration"] = reliability_diagram(
        {title: (each.said, each.true, each.count) for title, each in panels.items() if each is not None}
    )
    if (by_label["mended"] + by_label["broken"]).any():
        figures["changes"] = change_chart(names, by_label["mended"], by_label["broken"])
    if found.nodes is not None:
        figures["nodes"] = node_histogram(found.nodes)
    return figures


def _pulls(found: Findings) -> list[tuple[str, str, float]]:
    """Return the strongest dependencies as (label that influences, influenced label, weight)."""
    pulls = [] if found.dependencies is None else found.dependencies.strongest(NUM_PULLS)
    return [(found.label_names[giver], found.label_names[taker], weight) for giver, taker, weight in pulls]


def _feature_pulls(found: Findings) -> list[tuple[str, str, str]] | None:
    """Return each described label's name with the features that speak for and against the label."""
    if found.pulls is None:
        return None
    sides = zip(found.pulls.labels, found.pulls.towards, found.pulls.against, strict=True)
    return [(found.label_names[label], _told(some), _told(others)) for label, some, others in sides]


def _told(pulls: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {pull:+.2g}" for name, pull in pulls) or "none"


def _examples(found: Findings) -> list[dict[str, Any]]:
    """Return rows whose joint and marginal labels differ; first those made right or made wrong."""
    joint, alone = (right.tolist() for right in found.right)
    rows = sorted(found.changed_rows.tolist(), key=lambda row: joint[row] == alone[row])
    verdicts = {(True, False): "mended", (False, True): "broken"}
    return [
        {
            "row": int(found.rows[row]),
            "truth": _named(found, found.truth[row]),
            "alone": _named(found, found.alone[row]),
            "joint": _named(found, found.joint[row]),
            "verdict": verdicts.get((joint[row], alone[row]), "neither right"),
        }
        for row in rows[:NUM_EXAMPLES]
    ]


def _named(found: Findings, labels: Tensor) -> str:
    names = [name for name, on in zip(found.label_names, labels.tolist(), strict=True) if on]
    return ", ".join(names) or "none"
