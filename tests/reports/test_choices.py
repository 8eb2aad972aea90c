"""The page of an automatic choice says what was taken, what was tried and what the next best gives."""

from __future__ import annotations

import pytest
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import AutoLabelClassifier
from lmbm_torch.reports.pages import MAX_ROWS, choice_report, write_html, write_markdown

X, Y = random_inputs(0, 60, 4, 3)


@pytest.fixture(scope="module")
def model():
    families = ["label powerset", "forest of label sets"]
    return AutoLabelClassifier("sample_f1", families=families, cv=2, time_budget=1e4, random_state=0).fit(
        X, Y
    )


def test_every_number_of_the_choice_is_on_the_page(model, tmp_path):
    page = choice_report("a title & more", model)
    write_html(page, tmp_path / "choice.html")
    text = (tmp_path / "choice.html").read_text(encoding="utf-8")
    assert "a title &amp; more" in text
    assert text.count("data:image/png;base64,") == 1
    assert f"{model.best_score_:.4f}" in text
    for row in model.table_[:MAX_ROWS]:
        assert f'<td class="text">{row["settings"]}</td>' in text
    assert page.content["num_tried"] == len(model.table_)
    assert [row["settings"] for row in page.content["members"]] == [
        row["settings"] for row in model.table_ if row["weight"]
    ]


def test_the_next_best_is_the_best_that_was_not_taken(model, tmp_path):
    write_markdown(choice_report("title", model), tmp_path / "choice.md")
    text = (tmp_path / "choice.md").read_text(encoding="utf-8")
    others = [row for row in model.table_ if row["folds"] == 2 and not row["weight"]]
    best = max(others, key=lambda row: row["score"])
    assert f"The next best, on the same folds, is {best['family']} ({best['settings']})" in text
    assert f"with {best['score']:.4f}" in text


def test_what_has_not_chosen_is_refused():
    with pytest.raises(
        ValueError, match="model: expected a fitted AutoLabelClassifier, got AutoLabelClassifier"
    ):
        choice_report("title", AutoLabelClassifier())
