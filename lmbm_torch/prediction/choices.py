"""The page of an automatic choice: what was taken, what was tried, what the next best would give."""

from __future__ import annotations

from typing import Any

from lmbm_torch.prediction.pages import Report
from lmbm_torch.viz import bar_chart

# Rows of the table that are shown.
MAX_ROWS = 40


def choice_report(title: str, model: Any) -> Report:
    """The page of a fitted ``AutoLabelClassifier``, for ``write_html`` and ``write_markdown`` of the reports.

    Args:
        title: such as the name of the table.

    Raises:
        ValueError: a model that has not chosen.
    """
    if not hasattr(model, "table_"):
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
