"""How belief propagation keeps its messages can be said on the command line, and the run remembers it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException

from lmbm_torch import load
from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.inference.search import branch_and_bound

PRECISE = ["training.inference.backend=plain", "training.inference.message_dtype=float64"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 4)).astype(np.float32)
    y = (x @ random.normal(size=(4, 3)) > 0).astype(np.uint8)
    np.savez(tmp_path / "data.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    return [
        *("data=npz", f"data.data.path={tmp_path / 'data.npz'}", "data.validation_fraction=0.2"),
        *("training=latent", "model=conditional_rbm", "model.num_hidden=3", "trainer.max_epochs=1"),
        *("callbacks.progress_bar=null", "trainer.enable_progress_bar=false", "logger=none"),
        f"paths.run={tmp_path / 'run'}",
    ]


def train(*arguments: str) -> None:
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=list(arguments))
    jobs.start(config)


def settings(folder: Path) -> dict:
    inference = load(folder / "model.safetensors").inference
    assert inference is not None
    return inference.stored_parts()["settings"]


def test_a_run_propagates_as_it_is_told_and_remembers_it(arguments, tmp_path):
    train(*arguments, *PRECISE)
    assert settings(tmp_path / "run") == {"tol": 1e-2, "backend": "plain", "message_dtype": "float64"}


def test_a_decoder_of_the_same_propagation_matches(arguments, tmp_path, recwarn):
    decoder = ["inference=sum_product", "inference.tol=1e-2"]
    decoder += ["inference.backend=plain", "inference.message_dtype=float64"]
    train(*arguments, *PRECISE, *decoder)
    assert not [each for each in recwarn if "matched inference" in str(each.message)]


def test_another_precision_of_the_decoder_is_told(arguments):
    with pytest.warns(UserWarning, match=r"predicts by .*'message_dtype': 'float64'.* matched inference"):
        train(*arguments, "inference=sum_product", "inference.message_dtype=float64")


@pytest.mark.parametrize(
    "inference", ["scheduled_sum_product", "annealed_mixed_product", "inference.schedule=residual"]
)
def test_a_run_predicts_in_another_order_of_messages_or_annealed(arguments, tmp_path, inference):
    name, chosen = ("scheduled_sum_product", [inference]) if "=" in inference else (inference, [])
    random = ["training.method=cd", "loss=contrastive_divergence", "loss.init=random"]
    with pytest.warns(UserWarning, match=r"scheduled_bp\..* matched inference"):
        train(*arguments, *random, f"inference={name}", *chosen)
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["training.inference.message_dtype=int8"], "message_dtype: expected None or one of"),
        (["training.inference.backend=fast"], "backend: expected one of 'auto', 'plain'"),
        (["training.method=mle_mf", *PRECISE], "backend: expected None for .*mean_field.marginals, got"),
    ],
)
def test_what_there_is_not_is_refused_before_the_run(override, message, arguments, tmp_path):
    with pytest.raises((ValueError, InstantiationException), match=message):
        train(*arguments, *override)
    assert not (tmp_path / "run").exists()


def test_a_search_has_its_cutoff(arguments, tmp_path):
    network = [each for each in arguments if each.startswith(("data", "logger", "paths"))]
    train(*network, "training=dual", "inference=branch_and_bound", "inference.cutoff=2")
    decoder = load(tmp_path / "run" / "model.safetensors").estimator.decoder
    assert (decoder.func, decoder.keywords["cutoff"]) == (branch_and_bound.decode_hinge, 2)
