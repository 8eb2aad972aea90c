"""Saved configurations, which may call only parts of the library and trusted names.

A run directory may come from a stranger, and the ``config.yaml`` names functions and classes (``_target_``)
to call with arguments. Objects are made only by :class:`SavedConfiguration`, after a check of every name.
Command lines and ``--config-dir`` come from the caller and are not checked.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import CONFIG, reading

__all__ = []

LIBRARY = "lmbm_torch"
TARGET, PARTIAL, CONVERT, RECURSIVE, ARGS = "_target_", "_partial_", "_convert_", "_recursive_", "_args_"
WORDS_OF_HYDRA = {TARGET, PARTIAL, CONVERT, RECURSIVE, ARGS}
# Hydra's function that imports a function by its path; the path is checked like all other names.
GET_METHOD = "hydra.utils.get_method"
# Largest number of bytes in a configuration; a run with 30,000 named labels has less than one million.
LONGEST = 2**24
# Matches references to values in the same file, but no resolvers such as oc.env, which contain a colon.
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.\[\]]+\}")

_MODULES = """Sequential Identity Flatten Unflatten Linear Bilinear Embedding Dropout Dropout1d Dropout2d
ReLU LeakyReLU PReLU ELU SELU GELU SiLU Mish Softplus Softsign Tanh Sigmoid Hardtanh Softmax LogSoftmax
Conv1d Conv2d MaxPool1d MaxPool2d AvgPool1d AvgPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool1d
AdaptiveMaxPool2d BatchNorm1d BatchNorm2d LayerNorm GroupNorm RMSNorm"""
_OPTIMIZERS = "Adagrad Adam AdamW Adamax ASGD LBFGS NAdam RAdam RMSprop SGD"
_SCHEDULERS = """ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts ExponentialLR LinearLR MultiStepLR
OneCycleLR PolynomialLR ReduceLROnPlateau StepLR"""
OTHERS = frozenset(
    f"{package}.{name}"
    for package, names in {
        "torch.nn": _MODULES,
        "torch.optim": _OPTIMIZERS,
        "torch.optim.lr_scheduler": _SCHEDULERS,
        "lightning.pytorch": "Trainer",
        "lightning.pytorch.callbacks": "EarlyStopping LearningRateMonitor ModelCheckpoint",
        "lightning.pytorch.loggers": "CSVLogger TensorBoardLogger",
    }.items()
    for name in names.split()
)
"""Classes of other libraries that a configuration may call although nobody trusts them by name."""

# Parts of this library that a configuration may call: classes of these packages, functions of the modules
# below, and class methods of models.
_ROOMS = {"data", "estimators", "inference", "losses", "models", "training"}
_FUNCTIONS = ("data.", "inference.", "losses.", "estimators.networks.orderings.")
_MORE_FUNCTIONS = {
    "training.callbacks.display.mlflow_logger",
    "training.latent.by_method",
    *(f"training.structured.{penalty}" for penalty in ("quadratic", "none", "frobenius")),
}
_CLASS_METHODS = ("models.",)
# Matches the functions of ``inference`` that a configuration may call, which only compute results for an
# energy. Other functions may have further effects, such as starting a process.
_ANSWERS = re.compile(
    r"inference\.(\w+\.)*(decode\w*|\w*marginal\w*|log_partition|sample|estimate|relaxed_labels|MatchedInference)"
)
# Matches functions that write files, which a configuration may not call.
_WRITES = re.compile(r".*\.(write|save)\w*")


@dataclass(frozen=True)
class SavedConfiguration:
    """The configuration of a run directory, as plain values.

    Args:
        values: nested dictionaries and lists, without interpolations.
        trust: names outside of the library that may be imported and called.
    """

    values: dict[str, Any]
    trust: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: str | PathLike, trust: Sequence[str] = ()) -> SavedConfiguration:
        """Read ``config.yaml`` of a run directory; no name in the file is imported or called.

        References to other keys (``${C}``) are resolved.

        Args:
            folder: the run directory.
            trust: see :class:`SavedConfiguration`.

        Raises:
            FileNotFoundError: there is no configuration file.
            ValueError: the file is no configuration, or has an alias of YAML (aliases can grow without limit)
                or a resolver like ``${oc.env:HOME}``. The message names the file.
        """
        with naming_extras():
            import yaml
            from omegaconf import OmegaConf
            from omegaconf.errors import OmegaConfBaseException

        damage = (yaml.YAMLError, OmegaConfBaseException, RecursionError, OSError, OverflowError)
        with reading(Path(folder) / CONFIG, *damage) as file:
            if file.stat().st_size > LONGEST:
                raise ValueError(f"expected at most {LONGEST} bytes, got {file.stat().st_size} bytes")
            text = file.read_text(encoding="utf-8")
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
                raise ValueError("expected no alias of YAML (*name), got an alias")
            content = OmegaConf.create(text)
            _check_interpolations(OmegaConf.to_container(content), _REFERENCE)
            values = OmegaConf.to_container(content, resolve=True)
            # Check again, because two resolved references side by side may form a new interpolation.
            _check_interpolations(values, None)
            if not isinstance(values, dict):
                raise ValueError(f"expected a YAML mapping (keys with values), got {type(values).__name__}")
        return cls({str(key): value for key, value in values.items()}, frozenset(trust))

    def get(self, *keys: str) -> Any:
        """Return the value at a path of keys; None if a key is missing."""
        found: Any = self.values
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def check(self) -> None:
        """Check all names of the configuration; nothing outside of the library is imported.

        Raises:
            ValueError: see :meth:`make`.
        """
        for key, node in _nodes("", self.values):
            self._check_node(key, node)

    def make(self, *keys: str) -> Any:
        """Make the object that the configuration describes at a path of keys; None if a key is missing.

        Raises:
            ValueError: a name is not allowed (not a part of the library for runs, not in :data:`OTHERS` and
                not trusted); or the arguments are refused. The message names the key, and tells how to trust
                the name.
        """
        from hydra.errors import InstantiationException
        from hydra.utils import instantiate

        described = self.get(*keys)
        if not isinstance(described, dict):
            return described
        key = ".".join(keys)
        for place, node in _nodes(key, described):
            self._check_node(place, node)
        try:
            return instantiate(described, _convert_="all")
        except InstantiationException as error:
            raise ValueError(f"{key}: {worded(error)}") from error

    def _check_node(self, key: str, node: dict[str, Any]) -> None:
        name = node[TARGET]
        if name != GET_METHOD:
            self._check_name(f"{key}.{TARGET}", name)
        elif set(node) - WORDS_OF_HYDRA != {"path"} or node.get(ARGS):
            raise ValueError(f"{key}: expected {GET_METHOD} with only a path, got {sorted(node)}")
        else:
            self._check_name(f"{key}.path", node["path"])

    def _check_name(self, key: str, name: Any) -> None:
        if isinstance(name, str) and (name in self.trust or name in OTHERS or _is_part(name)):
            return
        raise ValueError(
            f"{key}: expected a part of {LIBRARY}, or a listed class of torch or lightning, got {name!r}, "
            f"which was not run{_way_out(name)}"
        )


def import_trusted(trust: Sequence[str]) -> None:
    """Import trusted classes, to make files with instances of the classes readable.

    Raises:
        ValueError: a name cannot be imported.
    """
    for name in trust:
        try:
            _located(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"trust: expected a class or function to import, such as mine.Encoder, got {name!r}: {error}"
            ) from error


def _way_out(name: Any) -> str:
    # Repeat only names such as mine.Encoder in the advice: a file must not make the user type other text.
    if not isinstance(name, str) or not name.replace(".", "_").isidentifier() or not name.isascii():
        return ""
    return (
        f". If you trust the author of this run and this name, allow it by name: --trust {name} (lmbm train "
        f"resume=… 'trust=[{name}]'; in Python trust=[{name!r}])"
    )


def worded(error: Exception) -> str:
    """Return the reason of an exception, without Hydra's advice to use overrides."""
    if error.__cause__ is not None:
        return str(error.__cause__)
    if "HYDRA_INSTANTIATE" in str(error):
        return "Hydra itself never calls this function from a configuration: call it in Python"
    return str(error)


def _check_interpolations(node: Any, allowed: re.Pattern[str] | None) -> None:
    """Raise ValueError if an interpolation does not match ``allowed``; None allows no interpolation."""
    if isinstance(node, dict):
        for key, value in node.items():
            _check_interpolations(key, None)
            _check_interpolations(value, allowed)
    elif isinstance(node, list):
        for value in node:
            _check_interpolations(value, allowed)
    elif isinstance(node, str) and "${" in (node if allowed is None else allowed.sub("", node)):
        kind = "no interpolation" if allowed is None else "a value, or a reference to a key such as ${C}"
        raise ValueError(f"expected {kind}, got {node!r}")


def _nodes(key: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every dictionary with a ``_target_``, at any depth, with the path of keys."""
    if isinstance(value, dict):
        if TARGET in value:
            yield key, value
        for name, inner in value.items():
            yield from _nodes(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _nodes(f"{key}.{place}", inner)


def _is_part(name: str) -> bool:
    """Return whether a name leads to a class or function of the library that a run may call.

    The module that defines the object is checked, because a module's attributes include all imports.
    """
    library, _, rest = name.partition(".")
    if library != LIBRARY or rest.partition(".")[0] not in _ROOMS:
        return False
    try:
        found = _located(name)
    except (ImportError, AttributeError, ValueError):
        return False
    module, path = getattr(found, "__module__", None) or "", getattr(found, "__qualname__", "")
    own = f"{module}.{path}"
    room, _, _ = own.removeprefix(f"{LIBRARY}.").partition(".")
    inner = own.removeprefix(f"{LIBRARY}.")
    if not own.startswith(f"{LIBRARY}.") or "._" in f".{own}" or _WRITES.fullmatch(inner):
        return False
    if room == "inference" and not _ANSWERS.fullmatch(inner):
        return False
    if inspect.isclass(found):
        return room in _ROOMS
    if inspect.ismethod(found):
        return inspect.isclass(found.__self__) and inner.startswith(_CLASS_METHODS)
    is_of_module = inspect.isfunction(found) and "." not in path
    is_meant = inner.startswith(_FUNCTIONS) or inner in _MORE_FUNCTIONS
    return is_of_module and is_meant


def _located(name: str) -> Any:
    """Import the object of a dotted name; a name in the library must not lead to another library's module.

    Raises:
        AttributeError, ImportError: there is no such object.
        ValueError: the name is not a dotted name.
    """
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("expected a dotted name such as mine.Encoder")
    found: Any = import_module(parts[0])
    for place, part in enumerate(parts[1:], 1):
        path = ".".join(parts[:place])
        if isinstance(found, ModuleType) and not hasattr(found, part):
            found = import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
        if parts[0] == LIBRARY and isinstance(found, ModuleType) and not found.__name__.startswith(path):
            raise ValueError(f"expected a module of {LIBRARY}, got {found.__name__}")
    return found
