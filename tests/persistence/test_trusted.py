"""Nothing of a run directory runs that somebody hands over, whatever its configuration names."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from persistence.attacks import ATTACKS, attack
from persistence.columns import sentences

from lmbm_torch.cli import estimated, evaluate, jobs, predict, report
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.persistence.trusted import OTHERS, SavedConfiguration, import_trusted
from lmbm_torch.prediction.predictor import Predictor

OWN = """
from lmbm_torch.inference.enumeration import exact


def decode(energy):
    return exact.decode(energy)
"""
TRUST = "own_decoder.decode"
TRUSTING = ["--trust", TRUST]
# Ways in which a saved run is read, each from a run directory and a file of new rows.
COMMANDS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "predict": lambda run, file, out: predict.main(
        [*map(str, (run, file, "--output", out / "p")), *TRUSTING]
    ),
    "evaluate": lambda run, _, out: evaluate.main([*map(str, (run, "--output", out / "e")), *TRUSTING]),
    "report": lambda run, _, out: report.main([*map(str, (run, "--output", out / "r.html")), *TRUSTING]),
    "resume": lambda run, *_: jobs.resume(str(run), [TRUST]),
    "load": lambda run, *_: Predictor.load(run, [TRUST]),
}
# Of a group that they do not read, or read alike, one attack is enough for each of these.
ONE_EACH = {"predict": "hub", "report": "joblib", "evaluate": "pandas", "load": "numpy"}
READERS = {"model.encoder": {*COMMANDS}, "inference": {*COMMANDS}, "data": {"evaluate", "report", "resume"}}
# The nodes of the run of `model_run`; each is read by some command.
GROUPS = (
    "data",
    "inference",
    "logger.tensorboard",
    "model",
    "model.encoder",
    "ordering",
    "training",
    "training.loss",
    "training.optimizer",
    "training.penalty",
    "trainer",
    "trainer.plugins",
    "callbacks.last",
    "callbacks.mine",
    "experiment",
    "estimator",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A table of four features and two labels."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 4))
    labels = (features[:, :2] + features[:, 2:] > 0).astype(int)
    cells = np.column_stack([features, labels]).tolist()
    rows = [",".join(f"{value:.6g}" for value in row) for row in cells]
    file = tmp_path_factory.mktemp("table") / "rows.csv"
    file.write_text("\n".join(["a,b,c,d,sun,sea", *rows]) + "\n")
    return file


@pytest.fixture(scope="module")
def model_run(table, tmp_path_factory) -> Iterator[Path]:
    """An interrupted run with an encoder and a decoder of the user's own, so that all commands read both."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_decoder.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    overrides = [
        *("data=table", f"data.train={table}", "data.labels=[sun,sea]", f"paths.run={folder / 'run'}"),
        *("model=sigmoid_belief_mlp", "training=gradient", "trainer.max_epochs=1"),
        *("model.encoder._args_.0.in_features=4", "model.encoder._args_.0.out_features=3"),
        *("inference._target_=own_decoder.decode", "~inference.margin", "~inference.node_limit"),
        *("callbacks.progress_bar=null", "trainer.enable_progress_bar=false"),
    ]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        jobs.start(compose("train", overrides=overrides))
    (folder / "run" / "metrics.json").unlink()
    yield folder / "run"
    sys.path.remove(str(folder))
    sys.modules.pop("own_decoder", None)


@pytest.fixture(scope="module")
def chain_run(tmp_path_factory) -> Path:
    """A run of an estimator of sequences."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "mine.conll").write_text(sentences(20, 0))
    overrides = [
        "data=conll",
        f"data.path={folder / 'mine.conll'}",
        "estimator=crf",
        f"paths.run={folder / 'run'}",
    ]
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        estimated.start(compose("train", overrides=overrides))
    return folder / "run"


def changed(run: Path, folder: Path, group: str, node: Any) -> Path:
    """A copy of a run whose configuration has another node for a group."""
    found = folder / "changed"
    shutil.copytree(run, found)
    config = yaml.safe_load((run / "config.yaml").read_text())
    *outer, last = group.split(".")
    place = config
    for key in outer:
        place = place[key]
    place[last] = [node] if isinstance(place.get(last), list) else node
    (found / "config.yaml").write_text(yaml.safe_dump(config))
    return found


def said(call: Callable[[], Any], capsys) -> str:
    """Why a command refuses; an empty text where it goes through."""
    capsys.readouterr()
    try:
        call()
    except SystemExit:
        return capsys.readouterr().err
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_runs_where_it_is_made(name, tmp_path):
    node, mark = attack(name, tmp_path / "attack")
    # Some go on with what they have made.
    with suppress(InstantiationException):
        instantiate(node)
    assert mark.exists()


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("group", GROUPS)
def test_no_command_runs_what_a_group_of_a_run_names(model_run, table, group, name, tmp_path, capsys):
    node, mark = attack(name, tmp_path / "attack")
    run = changed(model_run, tmp_path, group, node)
    readers = READERS.get(group, {"resume"})
    asked = {
        command: call
        for command, call in COMMANDS.items()
        if ONE_EACH.get(command, name) == name or {"load", "resume", command} <= readers
    }
    refusals = {
        command: said(lambda call=call: call(run, table, tmp_path), capsys) for command, call in asked.items()
    }
    assert not mark.exists()
    for command, refusal in refusals.items():
        assert "HYDRA_INSTANTIATE" not in refusal
        if group != "estimator":
            assert (f"--trust {node['_target_']}" in refusal) == (command in readers)
        assert not refusal or group in refusal


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("group", ["data", "estimator"])
def test_no_command_runs_what_a_run_of_sequences_names(chain_run, group, name, tmp_path, capsys, monkeypatch):
    node, mark = attack(name, tmp_path / "attack")
    run, file = changed(chain_run, tmp_path, group, node), chain_run.parent / "mine.conll"
    refusals = {
        command: said(lambda call=call: call(run, file, tmp_path), capsys)
        for command, call in COMMANDS.items()
    }
    Predictor.load(run)
    assert not mark.exists()
    if group == "data":
        assert "data._target_" in refusals["evaluate"]
        assert "data._target_" in refusals["report"]


def disguises(node: dict[str, Any]) -> dict[str, Any]:
    """The same call, written in other ways."""
    name = node["_target_"]
    arguments = {key: value for key, value in node.items() if key != "_target_"}
    return {
        "partial": {**node, "_partial_": True},
        "positional": {"_target_": name, "_args_": list(arguments.values())},
        "an argument": {"_target_": "torch.nn.Sequential", "_args_": [node]},
        "an argument of an argument": {"_target_": "torch.nn.Flatten", "start_dim": {"a": [node]}},
        "not recursive": {"_target_": "torch.nn.Flatten", "_recursive_": False, "start_dim": node},
        "converted": {**node, "_convert_": "all"},
        "without a target outside": {"inside": node},
        "in a list": [[node]],
        "from the environment": {**arguments, "_target_": "${oc.env:ATTACK}"},
        "decoded": {**arguments, "_target_": f"${{oc.decode:'{name}'}}"},
        "created": f"${{oc.create:{{_target_: {name}}}}}",
        "in two halves": {**arguments, "_target_": "${dollar}{oc.env:ATTACK}"},
        "a reference": {**arguments, "_target_": "${attacked}"},
        "a key of an interpolation": {**arguments, "${attacked}": 1, "_target_": name},
        "a method": {"_target_": "hydra.utils.get_method", "path": name},
        "a class": {"_target_": "hydra.utils.get_class", "path": name},
        "an instantiation": {"_target_": "hydra.utils.instantiate", "config": node},
        "an attribute of a module": {**arguments, "_target_": f"lmbm_torch.prediction.predictor.{name}"},
        "an attribute of a room": {**arguments, "_target_": f"lmbm_torch.data.datamodule.{name}"},
        "a name of no text": {**arguments, "_target_": [name]},
        "an alias": None,
    }


@pytest.mark.parametrize("disguise", disguises({"_target_": "x"}))
def test_no_disguise_of_a_call_runs(model_run, disguise, tmp_path, monkeypatch):
    node, mark = attack("torch", tmp_path / "attack")
    monkeypatch.setenv("ATTACK", "torch.load")
    run = changed(model_run, tmp_path, "model.encoder", disguises(node)[disguise])
    file = run / "config.yaml"
    text = "dollar: $\nattacked: torch.load\n" + file.read_text()
    if disguise == "an alias":
        text = "first: &first {_target_: torch.load}\nsecond: *first\n" + text
    file.write_text(text)
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # in many words
        Predictor.load(run)
    assert not mark.exists()
    assert "HYDRA_INSTANTIATE" not in str(refused.value)
    with pytest.raises(ValueError):  # noqa: PT011
        jobs.resume(str(run))
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "lmbm_torch.files.write_text",
        "lmbm_torch.data.write_mapped",
        "lmbm_torch.data.mapped.write_text",
        "lmbm_torch.data.images.Path",
        "lmbm_torch.data.batches.DataLoader",
        "lmbm_torch.persistence.save",
        "lmbm_torch.models.base.Stored",
        "lmbm_torch.inference.relaxations.toulbar2.solve",
        "lmbm_torch.inference.relaxations.cost_function_network.SolverProcess",
        "lmbm_torch.training.configured.build",
        "lmbm_torch.training.configured.instantiate",
        "lmbm_torch.training.runs.fit_and_measure",
        "lmbm_torch.training.runs.WholeCheckpoints.load_checkpoint",
        "lmbm_torch.training.dual.DualModule.load_from_checkpoint",
        "lmbm_torch.models.BoltzmannMachine.load_state_dict",
        "lmbm_torch.persistence.trusted.import_trusted",
        "lmbm_torch.cli.reproduce.main",
        "lmbm_torch.kernels.nvrtc.Kernel",
        "lmbm_torch.data",
        "lmbm_torch",
        "torch.nn.Module",
        "torch.nn.modules.module.torch.load",
    ],
)
def test_what_makes_no_part_of_a_run_is_refused(name):
    with pytest.raises(ValueError, match=r"mine\._target_: expected a part of lmbm_torch"):
        SavedConfiguration({"mine": {"_target_": name}}).make("mine")


def test_all_that_the_configuration_of_the_package_names_is_known():
    nodes: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "_target_" in value:
                nodes.append({key: value[key] for key in ("_target_", "path") if key in value})
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for file in Path(CONFIGURATION).rglob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        # That of the command itself, which no run directory holds.
        content.pop("hydra", None)
        if "table" not in file.parts:
            walk(content)
    assert len(nodes) > 80
    for node in nodes:
        named = {"_target_": node["_target_"]}
        if node["_target_"] == "hydra.utils.get_method":
            named["path"] = node["path"]
        SavedConfiguration({"mine": named}).check()


def test_classes_of_other_libraries_are_those_that_they_say():
    for name in OTHERS:
        module, _, path = name.rpartition(".")
        found = getattr(import_module(module), path)
        assert isinstance(found, type)
        assert found.__module__.startswith(module.rpartition(".")[0])
        assert found.__qualname__ == path


def test_a_reference_to_another_key_is_resolved(tmp_path):
    (tmp_path / "config.yaml").write_text("C: 3\nmodel: {a: '${C}', b: ['x${C}y']}\n")
    assert SavedConfiguration.read(tmp_path).values["model"] == {"a": 3, "b": ["x3y"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "expected a YAML mapping"),
        ("a: [\n", "config.yaml"),
        ("a: ${b}\n", "config.yaml"),
        ("a: " + "[" * 1500 + "]" * 1500, "config.yaml"),
        ("a: !!python/object/apply:os.getcwd []\n", "config.yaml"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text, words, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        SavedConfiguration.read(tmp_path)


def test_what_is_trusted_is_called_and_nothing_else(tmp_path):
    node, mark = attack("torch", tmp_path / "attack")
    found = SavedConfiguration({"mine": {"inside": node}}, frozenset({"joblib.load"}))
    with pytest.raises(ValueError, match=r"mine\.inside\._target_"):
        found.make("mine")
    assert not mark.exists()
    with suppress(ValueError):
        SavedConfiguration({"mine": {"inside": node}}, frozenset({"torch.load"})).make("mine")
    assert mark.exists()


def test_no_word_of_hydra_about_an_override_is_repeated():
    found = SavedConfiguration({"mine": {"_target_": "os.remove", "path": "x"}}, frozenset({"os.remove"}))
    with pytest.raises(ValueError, match="mine: Hydra itself never calls"):
        found.make("mine")


def test_a_name_that_is_no_name_is_not_offered_to_be_typed():
    with pytest.raises(ValueError, match=r"which was not run$"):
        SavedConfiguration({"mine": {"_target_": "a; rm -rf \x1b[2J"}}).make("mine")


def test_a_name_to_trust_must_be_there():
    with pytest.raises(ValueError, match=r"trust: expected a class .* got 'mine\.Nowhere'"):
        import_trusted(["mine.Nowhere"])
    import_trusted(["collections.abc.Mapping"])
