"""Gene functions in a hierarchy: forests and networks of neurons with coherent probabilities.

The protocol is that of Giunchiglia and Lukasiewicz (2020): settings are chosen on the validation part, by
classifiers of the training part; then the training and the validation part are learned, and the test part is
measured once. AU(PRC) is the area under the precision-recall curve of all pairs of instance and label.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

from lmbm_torch.compare.tables import Result
from lmbm_torch.data import named
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.estimators import HierarchicalClassifier, LMSBNClassifier
from reproduce.cells import Cell
from reproduce.dropout_network import DropoutNetwork

PUBLISHED = {"cellcycle": 0.255, "derisi": 0.195, "eisen": 0.306, "spo": 0.215}
"""AU(PRC) of C-HMCNN, Table 2 of its paper."""
COLUMNS = {
    "auprc": "AU(PRC)",
    "validation": "one member, validation",
    "violations": "violations",
    "labels": "labels a gene",
    "seconds": "processor (s)",
}
# Trees with a label vector in each leaf take much memory: they are grown in forests of so many.
TREES, QUANTILES, REACH = 50, 200, 2.5

Setting = Mapping[str, Any]


def filled() -> list[Any]:
    """Return steps before estimators that take features of any scale."""
    return [SimpleImputer(keep_empty_features=True)]


def smooth() -> list[Any]:
    """Return steps before estimators that expect features of one scale, without values that stand out."""
    normal = QuantileTransformer(n_quantiles=QUANTILES, output_distribution="normal")
    clipped = FunctionTransformer(np.clip, kw_args={"a_min": -REACH, "a_max": REACH})
    return [normal, clipped, *filled(), StandardScaler()]


def trees(kind: Any, max_features: str | float, seed: int, **setting: Any) -> Any:
    """Return a forest of one core."""
    return kind(TREES, max_features=max_features, random_state=seed, **setting)


def neurons(seed: int, **setting: Any) -> DropoutNetwork:
    """Return a network of neurons."""
    return DropoutNetwork(random_state=seed, **setting)


def linear(seed: int, **setting: Any) -> MultiOutputClassifier:
    """Return with scope "parent" a linear sigmoid belief network, whose arcs are those of the hierarchy."""
    return MultiOutputClassifier(LogisticRegression(random_state=seed, max_iter=300, **setting))


def network(seed: int, **setting: Any) -> LMSBNClassifier:
    """Return a large-margin sigmoid belief network of few parents, which the hierarchy is no part of."""
    return LMSBNClassifier(random_state=seed, calibrate="labels", **setting)


@dataclass(frozen=True)
class Method:
    """A classifier, and the settings of which the validation part chooses one.

    Args:
        estimator: from a seed and a setting.
        steps: before it.
        settings: to choose from.
        members: with a seed each, whose probabilities are averaged.
        scope: see :class:`~lmbm_torch.estimators.HierarchicalClassifier`.
    """

    estimator: Callable[..., Any]
    steps: Callable[[], list[Any]]
    settings: tuple[Setting, ...]
    members: int = 1
    scope: str = "all"


LEAVES = ({"min_samples_leaf": 3}, {"min_samples_leaf": 6})
LAYERS = ({"epochs": 30}, {"hidden": (500,) * 3, "epochs": 20})
EXTRA, NEURONS = "extra trees", "neurons"
# Trees for each parent's children, given that the parent is present, are a chain along the hierarchy.
FOREST_CHAIN, NETWORK = "extra trees, one for each parent", "sigmoid belief network"
MIXTURES = {"extra trees and neurons": (EXTRA, NEURONS), "forest chain and network": (FOREST_CHAIN, NETWORK)}
METHODS = {
    "linear, one for each parent": Method(linear, smooth, ({"C": 0.01},), scope="parent"),
    "random forest": Method(partial(trees, RandomForestClassifier, "sqrt"), filled, LEAVES, 3),
    FOREST_CHAIN: Method(partial(trees, ExtraTreesClassifier, 1 / 3), filled, LEAVES[1:], scope="parent"),
    EXTRA: Method(partial(trees, ExtraTreesClassifier, 1 / 3), filled, LEAVES, 3),
    NEURONS: Method(neurons, smooth, LAYERS, 5),
    NETWORK: Method(network, smooth, ({"C": 0.01}, {"C": 0.03})),
}


@dataclass(frozen=True)
class Genes:
    """A data set: instances and labels of its three parts, and the parent of each label that has one."""

    train: tuple[np.ndarray, np.ndarray]
    valid: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    hierarchy: dict[int, int]


def cells(sets: Sequence[str], methods: Sequence[str], folder: str) -> Iterator[Cell]:
    """Yield a cell for each data set, ``<set>_funcat`` in ``folder``: a mixture needs all of its members."""
    for name in sets:
        yield Cell(name, "all", partial(measured, f"{name}_funcat", methods, folder))


def read(name: str, folder: str) -> Genes:
    """Return the parts as they come, NaN for features that are missing."""
    with open_archive(named.data_folder(folder) / name / f"{name}.npz") as archive:
        train, valid, test = (
            (archive[f"x_{part}"].astype(np.float64), archive[f"y_{part}"].astype(np.int64))
            for part in ("train", "valid", "test")
        )
        parents = archive["label_parent"].tolist()
    return Genes(train, valid, test, {child: parent for child, parent in enumerate(parents) if parent >= 0})


def measured(name: str, methods: Sequence[str], folder: str) -> Result:
    """Return each method's measures, and those of each mixture of two methods where both are among them."""
    data = read(name, folder)
    result: Result = {}
    held_out, tested = {}, {}
    for method in methods:
        started = time.process_time()
        held_out[method], tested[method] = answers(METHODS[method], data)
        seconds = time.process_time() - started
        result[f"_{method}"] = {**measures(data, held_out[method], tested[method]), "seconds": seconds}
    for mixture, members in MIXTURES.items():
        if {*members} <= {*methods}:
            means = [np.mean([found[member] for member in members], 0) for found in (held_out, tested)]
            seconds = sum(result[f"_{member}"]["seconds"] for member in members)
            result[f"_{mixture}"] = {**measures(data, *means), "seconds": seconds}
    return result


def answers(method: Method, data: Genes) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of the validation part and, learned with it, of the test part."""
    # One member says which setting is best.
    tried = [
        probabilities(method, setting, data, [data.train], data.valid[0], members=1)
        for setting in method.settings
    ]
    best = int(np.argmax([area(data.valid[1], found) for found in tried]))
    both, members = [data.train, data.valid], method.members
    return tried[best], probabilities(method, method.settings[best], data, both, data.test[0], members)


def probabilities(
    method: Method,
    setting: Setting,
    data: Genes,
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    X: np.ndarray,
    members: int,
) -> np.ndarray:
    """Return the mean over the members, learned from the ``parts``; each is forgotten before the next one."""
    rows, labels = map(np.concatenate, zip(*parts, strict=True))
    found = np.zeros((len(X), labels.shape[1]))
    for seed in range(members):
        estimator = method.estimator(seed, **setting)
        last = HierarchicalClassifier(estimator, data.hierarchy, scope=method.scope)
        model = make_pipeline(*method.steps(), last)
        found += model.fit(rows, labels).predict_proba(X) / members
    return found


def area(labels: np.ndarray, probability: np.ndarray) -> float:
    """Return AU(PRC), micro-averaged."""
    return float(average_precision_score(labels.ravel(), probability.ravel()))


def measures(data: Genes, held_out: np.ndarray, tested: np.ndarray) -> Result:
    """Return measures of a method's probabilities; violations count probabilities and answers."""
    labels = tested > 0.5
    child, parent = np.array(list(data.hierarchy.items())).T
    broken = (tested[:, child] > tested[:, parent]) | (labels[:, child] > labels[:, parent])
    return {
        "auprc": area(data.test[1], tested),
        "validation": area(data.valid[1], held_out),
        "violations": int(broken.sum()),
        "labels": float(labels.sum(1).mean()),
    }


def summary(results: Sequence[Result]) -> list[Result]:
    """Return a row for each set and method, and the published one."""
    rows = []
    for result in results:
        name = result["data"]
        rows.append({"data": name, "method": "C-HMCNN, as published", "auprc": PUBLISHED[name]})
        for key, values in result.items():
            if key.startswith("_"):
                rows.append({"data": name, "method": key[1:], **values})
    return rows
