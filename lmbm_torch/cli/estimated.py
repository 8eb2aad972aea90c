"""Runs of ``lmbm train estimator=…``: fits of an estimator of the library to configured data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lmbm_torch.cli.sequences import described
from lmbm_torch.cli.showing import print_data, print_line, print_metrics
from lmbm_torch.cli.typed import Estimation, check_types
from lmbm_torch.constraints import Constraints
from lmbm_torch.data import SequenceData
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.sequences.conll import TEST, TRAIN
from lmbm_torch.estimators.common.under_rules import by_place
from lmbm_torch.files import METRICS, MODEL, write_metrics
from lmbm_torch.persistence import save
from lmbm_torch.prediction import answers
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.training import runs

# Configuration keys that have no effect on estimators.
OF_EPOCHS = ("model", "ordering", "inference", "loss", "training", "trainer", "callbacks", "logger")
# Configuration keys that only some estimators use.
SETTINGS = ("C", "margin", "coupling_penalty")
# Names of fitted attributes, and the names of their values in metrics.json.
REPORTED = {
    "objective_": "fit/objective",
    "duality_gap_": "fit/gap",
    "relative_gradient_": "fit/relative_gradient",
    "n_iter_": "fit/num_iters",
    "mean_loss_": "fit/mean_hinge",
    "threshold_": "fit/threshold",
    "error_bound_": "fit/error_bound",
}


def start(config: DictConfig, overrides: Sequence[str] = ()) -> dict[str, float]:
    """Fit an estimator; print, store (in the new directory ``paths.run``) and return the metrics.

    Args:
        overrides: overrides of the command line; overrides that do not affect the estimator are refused.

    Raises:
        ValueError: an override has no effect, a key has a wrong type, the directory is not empty, or the
            estimator refuses the data.
    """
    _check_overrides(overrides, str(OmegaConf.to_container(config.estimator)))
    kept_alone = OmegaConf.masked_copy(config, [*Estimation.__annotations__])
    kept: Any = OmegaConf.to_container(kept_alone, resolve=True)
    check_types(kept, Estimation)
    asked = DictConfig(kept)
    with runs.claimed(asked.paths.run, OmegaConf.to_yaml(asked)) as directory:
        metrics = _fit(directory, asked)
    print_metrics(str(directory), metrics)
    return metrics


def _check_overrides(overrides: Sequence[str], estimator: str) -> None:
    """Raise ValueError if an override would have no effect.

    Args:
        estimator: the configuration node of the estimator, unresolved.
    """
    unused = [each for each in overrides if each.lstrip("+~").split("=")[0].split(".")[0] in OF_EPOCHS]
    if unused:
        raise ValueError(
            f"estimator: expected no override of {', '.join(OF_EPOCHS)}, got {', '.join(unused)}; to train "
            "by epochs, replace estimator= by training=dual, gradient, latent or pcd"
        )
    for each in overrides:
        name = each.partition("=")[0]
        if name == "C" and "'Cs'" in estimator:
            raise ValueError(
                f"C: expected no value, because cross-validation chooses C, got {each}; set estimator.Cs"
            )
        if name in SETTINGS and f"${{{name}}}" not in estimator:
            raise ValueError(
                f"{name}: expected no value for this estimator, got {each}; try estimator.{name} instead"
            )


def _fit(directory: Path, config: DictConfig) -> dict[str, float]:
    data = instantiate(config.data, _convert_="all")
    estimator = instantiate(config.estimator, _convert_="all")
    if isinstance(data, SequenceData):
        metrics = _fit_to_sequences(directory, config.rules, estimator, data)
    else:
        metrics = _fit_to_labels(directory, config, estimator, data)
    write_metrics(directory / METRICS, metrics)
    return metrics


def _fit_to_labels(
    directory: Path, config: DictConfig, estimator: Any, data: MultilabelDataModule
) -> dict[str, float]:
    runs.check_measurable(data)
    classes = runs.classes_of(data.data)
    if config.rules is not None or classes:
        _take_rules(estimator, runs.keep_rules(directory, config.rules, data.label_names, classes))
    print_data(data.data, data, config.data.get("test"))
    fitted = Predictor.fit(estimator, data.data, data.train_rows, data.scaling)
    metrics = reported(fitted.estimator) | _chosen(estimator)
    for part, rows in (("val", data.validation_rows), ("test", data.data.test)):
        if len(rows):
            found = answers.evaluate(fitted, data.data, rows)
            metrics |= {f"{part}/{name}": value for name, value in found.items()}
    save(fitted, directory / MODEL)
    return metrics


def _take_rules(estimator: Any, rules: Constraints) -> None:
    """Set the rules of a file as constraints of an estimator, for training and predictions.

    Raises:
        ValueError: the estimator takes no constraints, or already has constraints.
    """
    if estimator.get_params(deep=False).get("constraints", rules) is not None:
        kind = type(estimator).__name__
        raise ValueError(f"rules: expected an estimator that takes constraints and has none yet, got {kind}")
    estimator.set_params(constraints=by_place(rules))


def _fit_to_sequences(
    directory: Path, rules: str | None, estimator: Any, data: SequenceData
) -> dict[str, float]:
    if rules is not None:
        raise ValueError(f"rules: expected no rules, because the data are sequences, got {rules}")
    print_line(described(data))
    fitted = Predictor.fit_sequences(estimator, data, TRAIN)
    metrics = reported(estimator)
    if data.num_folds > 1:
        found = answers.evaluate(fitted, data, data.fold == TEST)
        metrics |= {f"test/{name}": value for name, value in found.items()}
    save(fitted, directory / MODEL)
    return metrics


def _chosen(estimator: Any) -> dict[str, float]:
    """Print the scores of a cross-validation; return the chosen C and the mean score, if there are any."""
    if not hasattr(estimator, "Cs_"):
        return {}
    scores = estimator.scores_.mean(0)
    every = ", ".join(f"{C:.3g}: {score:.3f}" for C, score in zip(estimator.Cs_, scores, strict=True))
    print_line(f"C = {estimator.C_:.3g} has the best mean score of {len(estimator.scores_)} folds ({every})")
    return {"fit/C": estimator.C_, "fit/cv_score": float(scores.max())}


def reported(estimator: Any) -> dict[str, float]:
    """Return numbers about the training from fitted attributes of an estimator."""
    found = {name: getattr(estimator, attribute, None) for attribute, name in REPORTED.items()}
    # Attributes that are texts, such as the objective of a conditional RBM, are left out.
    return {name: float(value) for name, value in found.items() if not isinstance(value, str | None)}
