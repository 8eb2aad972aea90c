"""Sequences from the shell: trained on columns of tokens, tagged, measured and reported."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from lmbm_torch.cli import estimated, evaluate, jobs, predict, report
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data import read_conll
from lmbm_torch.data.sequences.conll import read_columns
from lmbm_torch.estimators import ChainCRF
from lmbm_torch.metrics.sequences import chunks
from lmbm_torch.prediction.predictor import Predictor

CHAINS = ("crf", "m3n", "hmm", "memm")
WORDS = {"B-NP": ["the", "a"], "I-NP": ["cat", "dog", "run"], "B-VP": ["sat", "run"], "O": ["and", "."]}
NEXT = {"B-NP": ["I-NP"], "I-NP": ["B-VP", "I-NP", "O"], "B-VP": ["B-NP", "O"], "O": ["B-NP"]}


def sentences(count: int, seed: int) -> str:
    """Sentences whose ambiguous word, run, only its neighbours decide."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(count):
        tag = "B-NP"
        for _ in range(random.integers(3, 8)):
            word = random.choice(WORDS[tag])
            lines.append(f"{word} {'X' if len(word) > 2 else 'Y'} {tag}")
            tag = random.choice(NEXT[tag])
        lines.append("")
    return "\n".join(lines) + "\n"


def composed(*overrides: str):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    (folder / "mine.conll").write_text(sentences(60, 0))
    (folder / "test.conll").write_text(sentences(20, 1))
    return folder / "mine.conll", folder / "test.conll"


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    """The folder and the metrics of a run of each chain."""
    found = {}
    for name in CHAINS:
        folder = tmp_path_factory.mktemp(name) / "run"
        data = ["data=conll", f"data.path={files[0]}", f"data.test={files[1]}"]
        found[name] = folder, estimated.start(composed(*data, f"estimator={name}", f"paths.run={folder}"))
    return found


@pytest.mark.parametrize("name", CHAINS)
def test_every_command_reads_the_run(runs, files, name, tmp_path, capsys):
    folder, metrics = runs[name]
    assert metrics["test/token_accuracy"] > 0.8
    assert json.loads((folder / "metrics.json").read_text()) == pytest.approx(metrics)
    evaluate.main([str(folder), "--output", str(tmp_path / "run.json")])
    evaluate.main([str(folder / "model.safetensors"), str(files[1]), "--output", str(tmp_path / "file.json")])
    for each in ("run.json", "file.json"):
        again = json.loads((tmp_path / each).read_text())
        assert {f"test/{key}": value for key, value in again.items()}.items() <= metrics.items()
    predict.main([str(folder), str(files[1]), "--output", str(tmp_path / "found.conll")])
    assert "20 sequences, 20 proven optimal" in capsys.readouterr().out
    found = read_columns(tmp_path / "found.conll")
    truth, given = found.column(2), found.column(3)
    right = sum(map(str.__eq__, truth, given)) / len(truth)
    assert right == pytest.approx(metrics["test/token_accuracy"])
    assert _chunk_f1(found) == pytest.approx(metrics["test/chunk_f1"])
    for page in ("page.html", "page.md"):
        report.main([str(folder), "--output", str(tmp_path / page)])
        content = (tmp_path / page).read_text()
        assert all(words in content for words in ("B-VP", "What is taken for what", "What follows what"))
        assert ("Whether probabilities can be believed" in content) == (name != "m3n")
        assert f"60 sequences of {_count(files[0])} tokens to train" in content


def _chunk_f1(tokens) -> float:
    spans = [slice(*tokens.start[each : each + 2]) for each in range(len(tokens.start) - 1)]
    found = [
        {
            (number, *chunk)
            for number, span in enumerate(spans)
            for chunk in chunks(tokens.column(column)[span])
        }
        for column in (2, 3)
    ]
    return 2 * len(found[0] & found[1]) / (len(found[0]) + len(found[1]))


def _count(file) -> int:
    return len(read_columns(file).rows)


def test_predictions_are_those_of_the_class(runs, files, tmp_path):
    data = read_conll(files[0], test=files[1])
    model = ChainCRF().fit(*data.within(0))
    test = data.within(1)
    predict.main([str(runs["crf"][0]), str(files[1]), "--output", str(tmp_path / "found.csv")])
    with (tmp_path / "found.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    expected = np.concatenate(model.predict(test.features))
    assert [row["predicted_tag"] for row in rows] == [data.label_names[tag] for tag in expected]
    likely = np.concatenate(model.predict_proba(test.features))[np.arange(len(rows)), expected]
    np.testing.assert_allclose([float(row["P(predicted_tag)"]) for row in rows], likely, rtol=1e-6)
    assert [row["given_tag"] for row in rows] == read_columns(files[1]).column(2)
    # Of a whole sequence, the product over its positions of P(tag | those before, the sequence).
    joint = {row["sequence"]: float(row["probability"]) for row in rows}
    assert all(0 < probability <= 1 for probability in joint.values())
    energy = model.energy(test.features)
    best = model.decode(test.features)
    from lmbm_torch.inference.trees import chain_dp

    log_prob = best.objective - chain_dp.log_partition(energy)
    np.testing.assert_allclose([*joint.values()], log_prob.exp(), rtol=1e-6)


def test_several_labellings_are_ranked(runs, files, tmp_path):
    predict.main([str(runs["crf"][0]), str(files[1]), "--top-k", "3", "--output", str(tmp_path / "k.csv")])
    with (tmp_path / "k.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["token"] == "0"]
    probabilities = np.array([float(row["probability"]) for row in rows]).reshape(-1, 3)
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    assert (np.diff(probabilities) <= 1e-12).all()
    assert "bound_of_unlisted" in rows[0]


def test_short_sequences_have_as_many_labellings_as_there_are(runs, files, tmp_path):
    first, *_ = files[1].read_text().splitlines()
    (tmp_path / "one.conll").write_text(f"{first}\n\n{files[1].read_text()}")
    asked = [str(tmp_path / "one.conll"), "--top-k", "9", "--output", str(tmp_path / "k.csv")]
    predict.main([str(runs["crf"][0]), *asked])
    with (tmp_path / "k.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["token"] == "0"]
    ranks = Counter(row["sequence"] for row in rows)
    assert ranks["0"] == len({row["predicted_tag"] for row in rows if row["sequence"] == "0"}) < 9
    assert max(ranks.values()) == 9
    probabilities = [float(row["probability"]) for row in rows if row["sequence"] == "0"]
    assert sum(probabilities) == pytest.approx(1)


def test_a_file_without_tags_is_tagged(runs, files, tmp_path, capsys):
    lines = [line.rsplit(" ", 1)[0] for line in files[1].read_text().splitlines()]
    (tmp_path / "new.conll").write_text("\n".join(lines).replace("sat", "slept") + "\n")
    predict.main([str(runs["crf"][0]), str(tmp_path / "new.conll")])
    shown = capsys.readouterr().out
    assert f"values that training has not seen, of {_count(tmp_path / 'new.conll')} tokens: " in shown
    assert " of word" in shown
    assert "given_tag" not in shown
    with pytest.raises(SystemExit):
        evaluate.main([str(runs["crf"][0]), str(tmp_path / "new.conll")])
    assert "file: expected a column of tags to compare" in capsys.readouterr().err


def test_unknown_tags_are_told_and_wrong(runs, tmp_path, capsys):
    (tmp_path / "new.conll").write_text("the X B-NP\ncat X B-NEW\n\nthe X B-NP\n")
    evaluate.main(
        [str(runs["crf"][0]), str(tmp_path / "new.conll"), "--output", str(tmp_path / "found.json")]
    )
    assert (
        "B-NEW: training has not seen this tag, so that no answer has it; in line 2"
        in capsys.readouterr().out
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["token_accuracy"] == pytest.approx(2 / 3)
    assert found["sequence_accuracy"] == 0.5
    report.main([str(runs["crf"][0]), str(tmp_path / "new.conll"), "--output", str(tmp_path / "page.html")])
    assert "B-NEW" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--most-probable"],
            "--most-probable, --least-hinge: expected no such option for a model of sequences",
        ),
        (["--node-limit", "3"], "--node-limit: expected no such option"),
        (["--delimiter", ";"], "--delimiter: expected no such option"),
        (["--output", "x.conll", "--top-k", "2"], "--top-k: expected 1"),
    ],
)
def test_options_of_label_vectors_are_refused(runs, files, arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        predict.main([str(runs["crf"][0]), str(files[1]), *arguments])
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x.conll").exists()


def test_tags_that_are_no_chunks_have_no_f1(files, tmp_path):
    content = files[0].read_text().replace("B-", "").replace("I-", "in")
    (tmp_path / "tags.conll").write_text(content)
    data = ["data=conll", f"data.path={tmp_path / 'tags.conll'}", f"paths.run={tmp_path / 'run'}"]
    metrics = estimated.start(composed(*data, "estimator=crf"))
    assert {"test/token_accuracy", "test/sequence_accuracy"} < {*metrics}
    assert "test/chunk_f1" not in metrics


@pytest.mark.parametrize("name", ["crf", "m3n"])
def test_constraints_are_of_the_tags_of_the_file(name, files, tmp_path):
    data = ["data=conll", f"data.path={files[0]}", f"data.test={files[1]}", f"paths.run={tmp_path / 'run'}"]
    estimated.start(composed(*data, f"estimator={name}", "estimator.constraints=BIO"))
    found = Predictor.load(tmp_path / "run")
    tags = found.schema.label_names
    energy = found.estimator.energy([np.zeros((2, found.estimator.n_features_in_))])
    assert {
        (before, after)
        for row, before in enumerate(tags)
        for column, after in enumerate(tags)
        if energy.transition[row, column] == -np.inf
    } == {("O", "I-NP"), ("B-VP", "I-NP")}
    assert [tag for tag, value in zip(tags, energy.unary[0, 0], strict=True) if value == -np.inf] == ["I-NP"]


def test_sequences_and_label_vectors_are_not_taken_for_each_other(files, tmp_path):
    run, conll = f"paths.run={tmp_path / 'run'}", ["data=conll", f"data.path={files[0]}"]
    with pytest.raises(ValueError, match=r"estimator: expected one of sequences .* got LMSBNClassifier"):
        estimated.start(composed(*conll, "estimator=kernel_network", run))
    with pytest.raises(ValueError, match=r"estimator: expected a class .* for label matrices, got ChainCRF"):
        estimated.start(composed("data=seven_segment", "estimator=crf", run))
    with pytest.raises(ValueError, match="data: expected label vectors to train on by epochs"):
        jobs.start(composed(*conll, "training=dual", run, "callbacks.progress_bar=null"))
    with pytest.raises(ValueError, match="rules: expected no rules, because the data are sequences"):
        estimated.start(composed(*conll, "estimator=crf", "rules=rules.txt", run))
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_is_refused(runs, tmp_path):
    content = (runs["crf"][0] / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:-40])
    with pytest.raises(ValueError, match=r"cut\.safetensors"):
        Predictor.load(tmp_path / "cut.safetensors")
