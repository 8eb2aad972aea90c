"""The command ``lmbm``: what it answers at once, and the configuration that it composes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmbm_torch.cli import entry, options, reproduce
from lmbm_torch.prediction import reading

ROOT = Path(__file__).parents[2]
# Each command line in turn: how it ended, whether torch was imported by then, and all that it printed.
ANSWERS = """
import contextlib, io, json, os, runpy, sys
from lmbm_torch.cli import entry

def answer(*arguments):
    printed = io.StringIO()
    sys.argv = [*arguments]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if arguments[0] == "lmbm":
                entry.main()
            else:
                runpy.run_path(arguments[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code
    return [code, "torch" in sys.modules, printed.getvalue()]

print(json.dumps([answer(*each) for each in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answers by command line, all in one process since starting one takes longer."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text("# @package _global_\nname: mine\nC: 0.25\n")
    (folder / "mine.csv").write_text("size;town;sun\n1,5;Rome;yes\n2,5;Oslo;no\n")
    (folder / "mine.xlsx").touch()
    (folder / "new.csv").write_text("size;sun\n1,5;perhaps\n")
    train = ROOT / "scripts" / "train.py"
    table = ["lmbm", "train", "data=table"]
    lines = [
        ["lmbm"],
        ["lmbm", "--help"],
        ["lmbm", "--version"],
        ["lmbm", "trian"],
        *(["lmbm", command, "--help"] for command in ("predict", "evaluate", "report", "reproduce")),
        ["lmbm", "train", "nonsense=1"],
        ["lmbm", "train", "data=nonsense"],
        table,
        [*table, f"data.train={folder}/mine.xlsx", "data.labels=5"],
        [*table, "data.train=no.csv", "data.test=no.tsv", "data.labels=sun", "rules=no.txt"],
        [*table, f"data.train={folder}/mine.csv", "data.labels=[su,town]", "data.ignore=x"],
        [*table, f"data.train={folder}/mine.csv", f"data.test={folder}/new.csv", "data.labels=sun"],
        ["lmbm", "train", "data=arff", "data.data.path=no.arff", "data.data.labels=1"],
        ["lmbm", "train", "data=conll", "data.path=no.conll", "data.test=no.txt", "estimator=crf"],
        ["lmbm", "predict", str(folder / "run"), str(folder / "no.csv"), "--rules", str(folder / "no.txt")],
        ["lmbm", "train", "experiment=noisy_digits_mle_bp", "callbacks=centred"],
        ["lmbm", "train", "experiment=seven_segment_crbm", "callbacks=[centred]"],
        ["lmbm", "compare", "data=svmlight"],
        ["lmbm", "compare", "nonsense=1"],
        ["lmbm", "reproduce", "table=nonsense"],
        ["lmbm", "reproduce"],
        ["lmbm", "predict", "--nonsense", "run", "file"],
        ["lmbm", "report", "run", "--output", "report.pdf"],
        ["lmbm", "train", "--config-dir", str(folder), "experiment=mine", "--cfg", "job"],
        [str(train), "--config-dir", str(folder), "experiment=mine", "--cfg", "job"],
    ]
    run = subprocess.run(
        [sys.executable, "-c", ANSWERS, json.dumps(lines)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    return {
        " ".join(line).replace(str(folder), "mine").replace(str(train), "scripts/train.py"): (
            code,
            has_torch,
            said.replace(str(folder), "FOLDER"),
        )
        for line, (code, has_torch, said) in zip(lines, found, strict=True)
    }


def test_answers_wait_for_no_import(answers):
    assert [line for line, (_, has_torch, _) in answers.items() if has_torch] == []


def test_help_names_every_command(answers):
    assert answers["lmbm"] == answers["lmbm --help"]
    assert all(f"  {name} " in answers["lmbm"][2] for name in entry.COMMANDS)
    for name in ("predict", "evaluate", "report"):
        assert f"usage: lmbm {name}" in answers[f"lmbm {name} --help"][2]


def test_help_needs_no_table(answers):
    code, _, said = answers["lmbm reproduce --help"]
    assert code == 0
    assert "table: any_table, classifier_chains, crbm_2017_ablations, crbm_2017_occlusions" in said


def test_tables_need_a_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "SCRIPTS", tmp_path / "scripts")
    with pytest.raises(
        SystemExit, match=r"lmbm reproduce: expected a clone of the repository, .* got an installed"
    ):
        reproduce.main()


def test_every_command_is_a_module():
    folder = Path(entry.__file__).parent
    assert all((folder / f"{name}.py").is_file() for name in entry.COMMANDS)
    scripts = {path.stem for path in (ROOT / "scripts").iterdir()}
    assert {*entry.COMMANDS} <= scripts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lmbm train nonsense=1", "Key 'nonsense' is not in struct"),
        ("lmbm train data=nonsense", "Could not find 'data/nonsense'"),
        ("lmbm train data=table", "data.labels, data.train: expected a value, got none; add data.labels=…"),
        (
            "lmbm train data=table data.train=mine/mine.xlsx data.labels=5",
            "data.train: FOLDER/mine.xlsx: expected a file ending in one of .csv, .tsv, .arff, .parquet",
        ),
        (
            "lmbm train data=table data.train=no.csv data.test=no.tsv data.labels=sun rules=no.txt",
            "rules: expected a file, found none at no.txt\n  "
            "data.train: expected a file, found none at no.csv\n  "
            "data.test: expected a file, found none at no.tsv\n",
        ),
        (
            "lmbm train data=table data.train=mine/mine.csv data.labels=[su,town] data.ignore=x",
            "data.labels: expected names or patterns of columns, got 'su', which fits no column; the table "
            "has ['sun']\n  data.ignore: expected names or patterns of columns, got 'x', which fits no "
            "column; the table has ['size', 'town', 'sun']\n  data.train: label 'town': expected 0, 1,",
        ),
        (
            "lmbm train data=table data.train=mine/mine.csv data.test=mine/new.csv data.labels=sun",
            "data.test: expected the columns of FOLDER/mine.csv, found none named ['town']\n  "
            "data.test: label 'sun': expected 0, 1, true, false, yes, no, x with empty cells, or a missing "
            "value, got ['perhaps']",
        ),
        (
            "lmbm train data=arff data.data.path=no.arff data.data.labels=1",
            "data.data.path: expected a file, found none at no.arff",
        ),
        (
            "lmbm train data=conll data.path=no.conll data.test=no.txt estimator=crf",
            "data.test: expected a file, found none at no.txt\n  "
            "data.path: expected a file, found none at no.conll",
        ),
        (
            "lmbm predict mine/run mine/no.csv --rules mine/no.txt",
            "model: expected a file or a folder, found none at FOLDER/run; "
            "file: expected a file or a folder, found none at FOLDER/no.csv; "
            "--rules: expected a file or a folder, found none at FOLDER/no.txt",
        ),
        ("lmbm train experiment=noisy_digits_mle_bp callbacks=centred", "'callbacks=[images,centred]'"),
        ("lmbm train experiment=seven_segment_crbm callbacks=[centred]", "'callbacks=[default,centred]'"),
        ("lmbm compare data=svmlight", "data.train: expected a value, got none; add data.train=…"),
        ("lmbm compare nonsense=1", "Key 'nonsense' is not in struct"),
        ("lmbm reproduce", "table: expected one, such as table=any_table or classifier_chains or"),
        ("lmbm reproduce table=nonsense", "Could not find 'table/nonsense'"),
        ("lmbm predict --nonsense run file", "unrecognized arguments: --nonsense"),
        ("lmbm report run --output report.pdf", "expected a file ending in .html or .md"),
    ],
)
def test_mistakes_are_named(answers, line, words):
    code, _, said = answers[line]
    assert code != 0
    assert words in said


def test_an_unknown_command_is_named(answers):
    assert answers["lmbm trian"][0] == "lmbm: expected one of " + ", ".join(entry.COMMANDS) + ", got 'trian'"


@pytest.mark.parametrize("start", ["lmbm train", "scripts/train.py"])
def test_a_folder_of_ones_own_adds_configuration(answers, start):
    code, _, said = answers[f"{start} --config-dir mine experiment=mine --cfg job"]
    assert code == 0
    assert "name: mine" in said
    assert "C: 0.25" in said


@pytest.mark.parametrize("line", [["--help"], ["predict", "--help"], ["train", "--help"]])
def test_a_reader_that_has_enough_ends_a_command_without_a_traceback(line):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from lmbm_torch.cli import entry; entry.main()", *line]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    # argparse passes over the error.
    assert ended.returncode == (0 if line[0] == "predict" else 1)
    assert ended.stderr == ""


def test_parts_are_those_that_reading_knows():
    assert options.PARTS == reading.PARTS


def test_a_missing_library_ends_a_command_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra", None)
    # As in a process of its own, whatever other tests have imported.
    monkeypatch.delitem(sys.modules, "lmbm_torch.cli.train", raising=False)
    monkeypatch.setattr(sys, "argv", ["lmbm", "train"])
    with pytest.raises(SystemExit, match=r'^lmbm train: .*pip install "lmbm-torch\[train\]"'):
        entry.main()
