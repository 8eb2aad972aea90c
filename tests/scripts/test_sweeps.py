"""The jobs of a sweep, several at once or sent to a cluster, end like those one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from lmbm_torch.cli.configuration import CONFIGURATION

ROOT = Path(__file__).parents[2]
QUIET = ["callbacks.progress_bar=null", "trainer.enable_progress_bar=false"]


@pytest.mark.parametrize("launcher", ["processes", "slurm", "slurm_local"])
def test_every_launcher_can_be_built(launcher):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert hasattr(instantiate(config.hydra.launcher), "launch")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "slurm_local"])
def test_jobs_elsewhere_end_like_those_here(tmp_path, launcher):
    overrides = ["experiment=seven_segment_lmsbn", "C=0.01,0.1", *QUIET]
    found = []
    for choice in ([], [f"hydra/launcher={launcher}"]):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        call = [sys.executable, str(ROOT / "scripts" / "train.py"), "-m", *overrides, *choice]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        (sweep,) = (folder / "runs" / "seven_segment_lmsbn").iterdir()
        found.append([json.loads((sweep / job / "metrics.json").read_text()) for job in ("0", "1")])
    assert found[0] == found[1]
