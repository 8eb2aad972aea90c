"""Pages say what was found, whatever names labels have and whatever the rows give no figure for."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from problems.small import NAMES, machine, small_data

from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.prediction.findings import findings
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.reports.pages import METRICS, Report, card, report, write_html, write_markdown

HOSTILE = ("<script>", "a|b", "{{ 1 }}", "line\nbreak")


def page_of(names=NAMES, coupling: float = 1.0) -> Report:
    model = machine()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        model.clique_weight.mul_(coupling)
    data = small_data()
    saved = Predictor.of_model(model.eval(), NAMES, 1.0, None)
    found = findings(saved, data, data.test)
    return report("a title & more", saved, replace(found, label_names=names))


def test_a_page_of_html_stands_alone(tmp_path):
    page = page_of()
    write_html(page, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == len(page.figures)
    assert "a title &amp; more" in text
    for each in page.content["metrics"]:
        numbers = (f"{each.joint:.3f}", f"{each.low:.3f} to {each.high:.3f}")
        cells = (each.words, *numbers, f"{each.alone:.3f}", f"{each.without:.3f}")
        assert "</td><td>".join(cells) in text
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_tables_of_html_scroll_in_narrow_windows(tmp_path):
    write_html(page_of(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("<table") == text.count('<div class="wide"><table>') > 2
    assert ".wide { overflow-x: auto; }" in text


def test_markdown_has_a_file_for_every_figure(tmp_path):
    page = page_of()
    write_markdown(page, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(shown) == len(page.figures)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in shown)
    assert "\n\n\n" not in text
    for line in text.splitlines():
        assert "{" not in line
        assert not line.startswith("|") or line.count("|") >= 4


def test_a_card_is_the_report_behind_metadata_that_hubs_read(tmp_path):
    page = page_of()
    page.content["title"] = 'a "title": & more'
    write_markdown(card(page, "people: all"), tmp_path / "README.md")
    write_markdown(page, tmp_path / "report.md")
    nothing, front, body = (tmp_path / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert nothing == ""
    plain = (tmp_path / "report.md").read_text(encoding="utf-8").strip()
    assert plain.replace("report_figures", "README_figures") in body
    (index,) = OmegaConf.create(front)["model-index"]
    assert index["name"] == 'a "title": & more'
    (result,) = index["results"]
    assert result["dataset"]["name"] == "people: all"
    measured = {each.words: each.joint for each in page.content["metrics"]}
    assert {each["name"]: each["value"] for each in result["metrics"]} == pytest.approx(measured, rel=1e-5)
    assert {each["type"] for each in result["metrics"]} == set(METRICS)


@pytest.mark.parametrize("write", [write_html, write_markdown])
def test_names_of_labels_cannot_break_a_page(tmp_path, write):
    path = tmp_path / "report"
    write(page_of(HOSTILE), path)
    text = path.read_text(encoding="utf-8")
    assert "{{ 1 }}" in text
    assert "<script>" not in text
    if write is write_markdown:
        assert "| a\\|b |" in text
        assert "| line break |" in text


@pytest.mark.parametrize(
    ("write", "taken"), [(write_html, "r.md"), (write_markdown, "r.md"), (write_markdown, "r_figures")]
)
def test_nothing_is_overwritten_unless_asked(tmp_path, write, taken):
    page = page_of()
    (tmp_path / taken).touch() if "." in taken else (tmp_path / taken).mkdir()
    with pytest.raises(FileExistsError, match=taken):
        write(page, tmp_path / "r.md")
    write(page, tmp_path / "r.md", "w")
    assert (tmp_path / "r.md").read_text(encoding="utf-8").count("a title") >= 1


def test_answers_that_agree_need_no_figure_of_changes(tmp_path):
    page = page_of(coupling=0.0)
    assert "changes" not in page.figures
    assert page.content["pulls"] == []
    for write, name in ((write_html, "report.html"), (write_markdown, "report.md")):
        write(page, tmp_path / name)
        assert (tmp_path / name).exists()


@pytest.mark.parametrize(("write", "ending"), [(write_html, "html"), (write_markdown, "md")])
def test_a_page_says_why_one_row_has_its_labels(tmp_path, write, ending):
    data = small_data()
    rows = pd.DataFrame(data.features, columns=["a", "b|c", "d", "e", "f"])
    labels = pd.DataFrame(data.labels, columns=NAMES)
    model = LMSBNClassifier(random_state=0).fit(rows[:60], labels[:60])
    saved = Predictor.of(model)
    found = findings(saved, data, data.test)
    assert found.explained is not None
    row, why = found.explained
    assert str(why) == str(model.explain(rows[row : row + 1]))
    write(report("why", saved, found), tmp_path / f"report.{ending}")
    text = (tmp_path / f"report.{ending}").read_text(encoding="utf-8")
    assert f"Why row {row} has its labels" in text
    (name, because, _), *_ = why.rows()
    assert name in text
    assert because.replace("|", "\\|" if ending == "md" else "|") in text
    triples = Predictor.of(LMSBNClassifier(degree=3, random_state=0).fit(rows[:60], labels[:60]))
    assert findings(triples, data, data.test).explained is None


@pytest.mark.parametrize(("write", "ending"), [(write_html, "html"), (write_markdown, "md")])
def test_a_page_says_which_features_pull_which_label_and_what_to_do(tmp_path, write, ending):
    data = small_data()
    names = ("a", "b|c", "d", "e", "f")
    model = LMSBNClassifier(random_state=0).fit(
        pd.DataFrame(data.features, columns=names), pd.DataFrame(data.labels, columns=NAMES)
    )
    data = replace(data, feature_names=names)
    saved = Predictor.of(model)
    found = findings(saved, data, data.test, None, data.labels[data.train])
    write(report("t", saved, replace(found, exact=torch.zeros(20, dtype=torch.bool))), tmp_path / "r1")
    text = (tmp_path / "r1").read_text(encoding="utf-8")
    pulls = model.coef_ * data.features[data.test].std(0)
    for label, row in enumerate(pulls):
        strongest = int(np.abs(row).argmax())
        name = names[strongest].replace("|", "\\|" if ending == "md" else "|")
        assert f"{name} {row[strongest]:+.2g}" in text, NAMES[label]
    assert "in most training rows" in text
    assert "20 of 20 answers are not proven optimal" in text
    kernel = Predictor.of(LMSBNClassifier(kernel="rbf", random_state=0).fit(data.features, data.labels))
    renamed = replace(data, label_names=kernel.label_names)
    page = report("t", kernel, findings(kernel, renamed, data.test))
    page.content["advice"] = []
    write(page, tmp_path / "r2")
    text = (tmp_path / "r2").read_text(encoding="utf-8")
    assert "What next" not in text
    assert "are not weighted sums of its features" in text
    assert "training rows are not known" in text


@pytest.mark.parametrize(("write", "ending"), [(write_html, "html"), (write_markdown, "md")])
def test_a_page_says_of_how_many_labels_features_are_shown(tmp_path, monkeypatch, write, ending):
    monkeypatch.setattr("lmbm_torch.prediction.findings.MAX_DESCRIBED", 3)
    write(page_of(), tmp_path / "r")
    assert "The 3 of 4 labels that are true most often." in (tmp_path / "r").read_text(encoding="utf-8")
