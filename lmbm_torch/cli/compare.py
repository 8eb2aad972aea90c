"""Compare all families of models and well-known other methods on a multi-label data set.

lmbm compare data=scene

Each method chooses from the same number of settings, by cross-validation on the training part of each of
several splits. The command writes table.csv, table.md and table.png, which `make keep RUN=runs/compare/scene`
copies to results/compare_scene.*. Trials of an earlier call with equal settings are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

from lmbm_torch.cli.configuration import CONFIGURATION, in_a_sentence
from lmbm_torch.cli.given_files import check_files
from lmbm_torch.extras import naming_extras

if TYPE_CHECKING:
    from lmbm_torch.data import MultilabelData

# Seconds after which a scheduler of Dask that does not answer is given up.
PATIENCE = 10
# Values of ``data`` that read a file of the user.
OF_FILES = ("table", "svmlight", "arff", "npz")


@hydra.main(version_base="1.3", config_path=CONFIGURATION, config_name="compare")
def main(config: DictConfig) -> None:
    """Compare models on the data of the command line."""
    with in_a_sentence("compare"):
        _run(config)


def _run(config: DictConfig) -> None:
    # Data of sequences are refused below, with a better message than that of a missing path.
    if config.data._target_ != "lmbm_torch.data.read_conll":
        check_files(config, config.keys())
    from rich.console import Console

    from lmbm_torch.cli.typed import Comparison, check_types
    from lmbm_torch.compare import trials
    from lmbm_torch.compare.comparing import compare
    from lmbm_torch.compare.methods import METHODS, is_installed, takes
    from lmbm_torch.compare.tables import table

    check_types(OmegaConf.to_container(config, resolve=True), Comparison)  # pyright: ignore[reportArgumentType]
    data = _data(config.data)
    data.check_certain()
    settings = trials.Settings(config.splits, config.test_fraction, config.budget, config.folds, config.seed)
    possible = [name for name in METHODS if is_installed(name) and takes(name, data.features)]
    methods = possible if config.methods is None else list(config.methods)
    folder = Path("runs", "compare", _title(config)) if config.output is None else Path(config.output)
    name, console = config.name or f"compare_{_title(config)}", Console()
    with table(folder, name), on_cluster(config.cluster):
        compare(data, methods, config.reference, settings, folder, console)
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)


def _title(config: DictConfig) -> str:
    """Return the name of the data in the configuration, with the name of the user's file if there is one."""
    from hydra.core.hydra_config import HydraConfig

    chosen = HydraConfig.get().runtime.choices["data"]
    file = config.data.get("train") or config.data.get("data", {}).get("path")
    if chosen not in OF_FILES or file is None:
        return chosen
    return f"{chosen}_{Path(file).name.partition('.')[0]}"


def _data(config: DictConfig) -> MultilabelData:
    """Return the data set of the configuration without scaling, because each method chooses a scaling.

    Raises:
        ValueError: the data are sequences.
    """
    from hydra.utils import get_object, instantiate

    from lmbm_torch.data import SequenceData

    # Data of sequences are refused before they are read, because no method can use sequences.
    made = getattr(get_object(config._target_), "__annotations__", {}).get("return")
    if made in (SequenceData, SequenceData.__name__):
        raise ValueError(
            "data: expected a table of instances with labels, such as data=table or data=scene, got the "
            f"sequences of {config._target_}; measure models of sequences one by one with `lmbm train "
            "estimator=crf` (or m3n, hmm, memm)"
        )
    if "data" in config:
        return instantiate(config.data)
    unscaled = {"_target_": "lmbm_torch.data.scaling.unscaled", "_partial_": True}
    return instantiate(config, scaling=unscaled).data


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Run the body on the workers of a Dask cluster; on this computer if ``address`` is None.

    Args:
        address: address of the scheduler, for example ``tcp://localhost:8786``.

    Raises:
        ValueError: no scheduler answers at the address.
        ModuleNotFoundError: Dask is not installed.
    """
    if address is None:
        yield
        return
    with naming_extras():
        import joblib
        from distributed import Client
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        expected = "the address of a Dask scheduler, such as tcp://localhost:8786"
        raise ValueError(f"cluster: expected {expected}, got {address}: {error}") from error
    with client, joblib.parallel_config(backend="dask"):
        yield


if __name__ == "__main__":
    main()
