"""Set-up of every test process: one thread, shape annotations enforced, the data folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

# Read when Triton is imported, whoever does it: without a GPU its kernels run in the interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The processes of pytest-xdist share the cores.
torch.set_num_threads(1)
pytest.register_assert_rewrite("contracts", "devices", "problems", "references", "strategies")

# Claims a device, which torch takes only until its autograd has run for the first time, in whatever test.
import_module("devices.accelerator")

# Derandomised: a failure on one machine is a failure on all. A kernel may compile in any first example.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("suite")

# Never kernels: their inner loops are compiled, or called per tensor element of a search.
jaxtyping.install_import_hook(
    ["lmbm_torch.energies", "lmbm_torch.inference", "lmbm_torch.losses", "lmbm_torch.models"],
    "shape_checking.checker",
)


# Small matrices of tests are full: as CSR they shall test what walks CSR, and are no arrays in disguise.
import_module("lmbm_torch.solvers.networks.problems").MOSTLY_FULL = 1.0


# Rooms whose tests check shapes at every call. It takes longer than many a call, so that others do without;
# every routine of inference is checked by the contracts, once.
SHAPES_ARE_CHECKED = {"energies", "losses", "models"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check annotated shapes where they are a test's subject."""
    room = item.path.relative_to(Path(__file__).parent).parts[0]
    jaxtyping.config.update("jaxtyping_disable", room not in SHAPES_ARE_CHECKED)


# Rooms whose files compute the same cases: one process runs all of them.
TOGETHER = {"contracts", "estimators"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let ``--dist loadfile`` keep these rooms together as well."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = import_module("xdist.scheduler").LoadFileScheduling

    class LoadRoomScheduling(scheduling):
        def _split_scope(self, nodeid: str) -> str:
            _, room, *_ = nodeid.split("/")
            return room if room in TOGETHER else super()._split_scope(nodeid)

    return LoadRoomScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let the hook check containers inside hypothesis strategies."""
    config.addinivalue_line(
        "filterwarnings",
        # beartype draws the entry that it looks at, which changes nothing that is tested.
        "ignore:Do not use the `random` module inside strategies"
        ":hypothesis.errors.HypothesisDeprecationWarning",
    )


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """The library as its users run it: what refuses a wrong shape is the library's own check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets, for tests marked ``data``."""
    name = os.environ.get("LMBM_DATA")
    if not name:
        pytest.skip("LMBM_DATA is not set: no folder of real data sets")
    folder = Path(name)
    if not folder.is_dir():
        pytest.skip(f"LMBM_DATA={name} is not a folder")
    return folder
