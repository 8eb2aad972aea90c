"""The committed settings of every table have the types of what they call; cells travel to any worker."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import cloudpickle
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from sweeps import thorough

import reproduce
from lmbm_torch.cli.typed import check_call, check_types
from reproduce import CONFIGURATION, encoders
from reproduce.__main__ import Reproduction

TABLES = sorted(path.stem for path in Path(CONFIGURATION, "table").glob("*.yaml"))


@pytest.mark.parametrize("name", thorough(TABLES, 1))
def test_tables_pass(name):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = OmegaConf.to_container(compose("reproduce", [f"table={name}", "name=x"]), resolve=True)
    assert isinstance(config, dict)
    check_types(config, Reproduction)
    table = config["table"]
    check_call("table", import_module(table.pop("module")).cells, table)


def test_cells_run_where_the_library_alone_is(tmp_path):
    rows = [{"exact_match": 0.5, "exact_match_deviation": 0.0}]
    cloudpickle.register_pickle_by_value(reproduce)
    try:
        sent = cloudpickle.dumps(partial(encoders.summary, rows))
    finally:
        cloudpickle.unregister_pickle_by_value(reproduce)
    (tmp_path / "sent").write_bytes(sent)
    code = "import pickle, sys; print('reproduce' in sys.modules, pickle.load(open('sent', 'rb')))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("False functools.partial(")
