"""Fit every estimator to small random problems: odd columns, labels and settings.

python scripts/fuzz/fits.py --fits 10000 network machine

Whatever fails in another way than by an error about an argument is shown, with its seed, and so is what lasts
for more than 10 seconds, as nothing but the first call of a kernel may; either makes the exit status 1. Of
each kind of fit it tells how many were learned rather than refused, and their CPU time.
``--first`` goes on where an earlier run has ended.
"""

from __future__ import annotations

import argparse
import re
import time
import traceback
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB
from sklearn.tree import DecisionTreeClassifier

from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    ConformalClassifier,
    ConstrainedClassifier,
    HierarchicalClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMBMClassifierCV,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    StructuralSVMClassifierCV,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.automatic.candidates import FAMILIES
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.estimators.machines.conditional_rbm import OBJECTIVES

Random = np.random.Generator
# CPU seconds of a fit and its predictions.
LONG = 10.0
# Those that explain their answers, with linear kernels.
LINEAR = LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier


def strength(random: Random) -> float:
    """Draw a penalty from 1e-6 to 1e6, often 1."""
    return float(10.0 ** random.integers(-6, 7)) if random.random() < 0.7 else 1.0


def features(random: Random, rows: int) -> Any:
    """Draw normal values with zero, constant, doubled and large columns, and with equal and zero rows."""
    X = random.normal(size=(rows, random.integers(1, 5)))
    if random.random() < 0.3:
        X = np.round(X)
    for column in range(X.shape[1]):
        kind = int(random.integers(8))
        X[:, column] *= {0: 0.0, 1: 1e-3, 2: 1e3}.get(kind, 1.0)
        if kind == 3:
            X[:, column] = random.integers(-2, 3)
        elif kind == 4:
            X[:, column] = X[:, 0]
    if random.random() < 0.3:
        X[random.integers(rows)] = X[0]
    if random.random() < 0.2:
        X[random.integers(rows)] = 0
    if random.random() < 0.1:
        X[:] = X[0]
    X = X.astype(np.float32) if random.random() < 0.3 else X
    return sparse.csr_array(X) if random.random() < 0.3 else X


def label_vectors(random: Random, rows: int) -> np.ndarray:
    """Draw labels at any rate, 0 and 1 included; at times all labels, or all instances, are equal."""
    Y = (random.random((rows, random.integers(2, 5))) < random.choice([0, 0.1, 0.5, 1], 1)).astype(float)
    for label in range(Y.shape[1]):
        kind = random.integers(6)
        if kind < 2:
            Y[:, label] = kind
        elif kind == 2:
            Y[:, label] = Y[:, 0]
        elif kind == 3:
            Y[:, label] = random.random(rows) < 0.5
    return Y


def mixed(random: Random, rows: int) -> np.ndarray:
    """Return label vectors of several types, and at times classes in their place."""
    if random.random() < 0.15:
        return classes(random, rows)
    Y = label_vectors(random, rows)
    return Y.astype(str(random.choice(["float64", "float32", "int64", "bool"])))


def some_missing(random: Random, rows: int) -> np.ndarray:
    """Return label vectors, of which half the draws lack entries, at times all of a row or of a label."""
    Y = label_vectors(random, rows)
    if random.random() < 0.5:
        Y[random.random(Y.shape) < random.choice([0.1, 0.5])] = np.nan
        if random.random() < 0.2:
            Y[random.integers(rows)] = np.nan
        if random.random() < 0.2:
            Y[:, 0] = np.nan
    return Y


def classes(random: Random, rows: int) -> np.ndarray:
    return np.array(["a", "b", "c"])[random.integers(random.integers(1, 4), size=rows)]


def kernel(random: Random, *more: str) -> dict[str, Any]:
    gamma = ["scale", "auto", strength(random)][random.integers(3)]
    return {"kernel": random.choice(["linear", "rbf", "poly", *more]), "gamma": gamma}


def network(random: Random) -> LMSBNClassifier:
    chosen = kernel(random)
    solver = random.choice(["dual_coordinate", "exponentiated_gradient", "pegasos"])
    return LMSBNClassifier(
        **{"C": strength(random)} | options(random, C=["scale"]),
        margin=strength(random),
        ordering=random.choice(["f_score", "index", "random"]),
        parent_scale=strength(random),
        solver=solver if chosen["kernel"] == "linear" else "dual_coordinate",
        max_iter=int(random.integers(1, 30)),
        random_state=0,
        **chosen,
        **options(random, decoder=["f1", "jaccard", "hamming", "exact_match"], degree=[1, 3]),
        **options(random, class_weight=["balanced"], cutoff=[0.5, 3.0], node_limit=[1, 10]),
    )


def options(random: Random, **values: list[Any]) -> dict[str, Any]:
    """Return some of the arguments named, each with one of its values."""
    return {name: some[random.integers(len(some))] for name, some in values.items() if random.random() < 0.2}


def few_parents(random: Random) -> LMSBNClassifier:
    return LMSBNClassifier(
        **{"C": strength(random)} | options(random, C=["scale"]),
        max_parents=2,
        margin=strength(random),
        ordering=random.choice(["auto", "f_score", "frequency", "random"]),
        max_iter=int(random.integers(1, 30)),
        random_state=0,
        **options(random, decoder=["f1", "jaccard", "hamming", "exact_match"], class_weight=["balanced"]),
        **options(random, cutoff=[0.5, 3.0], node_limit=[1, 10], calibrate=["scale", "labels"]),
    )


def machine(random: Random) -> LMBMClassifier:
    return LMBMClassifier(
        C=strength(random),
        coupling_penalty=strength(random),
        margin=strength(random),
        cliques=["pairwise", [(0,), (0, 1)], [(0,), (1,)]][random.integers(3)],
        solver=str(random.choice(["proximal_newton", "dual_coordinate"])),
        max_iter=int(random.integers(1, 30)),
        random_state=0,
        **options(random, decoder=["exact", "integer_program", "lp_relaxation"], class_weight=["balanced"]),
        **options(random, calibrate=["scale", "labels"]),
    )


def structural(random: Random) -> StructuralSVMClassifier:
    return StructuralSVMClassifier(
        C=strength(random),
        graph=["full", "chain", [(0, 1)]][random.integers(3)],
        coupling_penalty=strength(random),
        max_iter=int(random.integers(1, 10)),
        random_state=0,
        **options(random, decoder=["exact", "integer_program", "lp_relaxation", "viterbi"]),
        **options(random, class_weight=["balanced"], calibrate=["scale", "labels"]),
    )


def label_chain(random: Random) -> ProbabilisticClassifierChain:
    """Return a chain of scikit-learn's classifiers, with probabilities or without."""
    bases = [
        LogisticRegression(C=min(strength(random), 1e3), max_iter=20),
        DecisionTreeClassifier(max_depth=2, random_state=0),
        BernoulliNB(),
    ]
    return ProbabilisticClassifierChain(
        bases[random.integers(len(bases))],
        random_state=0,
        **options(random, order=["index", "random"], num_members=[2], cv=[2], class_weight=["balanced"]),
        **options(random, search=["beam", "depth_first"]),
        **options(random, decoder=["f1", "hamming", "jaccard"], node_limit=[1, 5], beam_width=[1]),
    )


def any_of(random: Random) -> Any:
    makers = [network, machine, structural, hidden, label_chain]
    return makers[random.integers(len(makers))](random)


def completing(random: Random) -> Any:
    """Return one that has no order to impute labels in, or a measure of those that are known."""
    makers = [machine, structural, hidden, lambda random: ThresholdTunedClassifier(network(random), cv=2)]
    return makers[random.integers(len(makers))](random)


def ruled(random: Random) -> ConstrainedClassifier:
    rules = ["label_0 -> not label_1", "label_0 or label_1", "at_most_one(label_0, label_1)"]
    chosen = [rule for rule in rules if random.random() < 0.5]
    return ConstrainedClassifier(any_of(random), chosen, **options(random, part_limit=[1, 2]))


def hierarchical(random: Random) -> HierarchicalClassifier:
    bases = [
        LMSBNClassifier(max_iter=20, random_state=0),
        DecisionTreeClassifier(max_depth=2, random_state=0),
    ]
    return HierarchicalClassifier(
        bases[random.integers(len(bases))],
        [{1: 0}, {0: 1}, {}][random.integers(3)],
        scope=random.choice(["all", "parent"]),
        decoder=random.choice(["hamming", "exact_match"]),
    )


def closed(random: Random, rows: int) -> np.ndarray:
    """Return label vectors whose first two labels are equal, or obey the hierarchy."""
    Y = label_vectors(random, rows)
    if random.random() < 0.9:
        Y[:, 1] = Y[:, 0]
    return Y


def covering(random: Random) -> ConformalClassifier:
    bases = [few_parents, machine, label_chain]
    return ConformalClassifier(
        bases[random.integers(len(bases))](random),
        coverage=float(random.choice([1e-6, 0.5, 0.9, 1 - 1e-9])),
        calibration_size=float(random.choice([0.1, 0.5, 0.9])),
        random_state=0,
    )


def chosen_along_path(random: Random) -> Any:
    maker, path = [
        (network, LMSBNClassifierCV),
        (machine, LMBMClassifierCV),
        (structural, StructuralSVMClassifierCV),
    ][random.integers(3)]
    return path(maker(random), Cs=[[1.0], [1e-3, 1e3], 2][random.integers(3)], cv=2, random_state=0)


def hidden(random: Random) -> ConditionalRBMClassifier:
    return ConditionalRBMClassifier(
        C=strength(random),
        num_hidden=int(random.integers(1, 4)),
        objective=str(random.choice(["auto", *OBJECTIVES])),
        num_iters=3,
        max_iter=2,
        batch_size=int(random.integers(1, 9)),
        random_state=0,
    )


Fit = tuple[Any, Callable[[Random, int], np.ndarray]]
MAKERS: dict[str, Callable[[Random], Fit]] = {
    "network": lambda random: (network(random), label_vectors),
    "missing": lambda random: (network(random), some_missing),
    "incomplete": lambda random: (completing(random), some_missing),
    "any": lambda random: (any_of(random), mixed),
    "label chain": lambda random: (label_chain(random), label_vectors),
    "few parents": lambda random: (few_parents(random), label_vectors),
    "hierarchy": lambda random: (hierarchical(random), closed),
    "sets": lambda random: (covering(random), label_vectors),
    "rules": lambda random: (ruled(random), label_vectors),
    "path": lambda random: (chosen_along_path(random), label_vectors),
    "automatic": lambda random: (
        AutoLabelClassifier(time_budget=1, cv=2, families=[str(random.choice([*FAMILIES]))], random_state=0),
        label_vectors,
    ),
    "thresholds": lambda random: (ThresholdTunedClassifier(network(random), cv=2), label_vectors),
    "ensemble": lambda random: (LMSBNEnsembleClassifier(network(random), num_members=2), label_vectors),
    # libsvm, whose C is limited here, since it knows no limit of iterations.
    "powerset": lambda random: (LabelPowersetSVM(C=min(strength(random), 1.0)), label_vectors),
    "machine": lambda random: (machine(random), label_vectors),
    "structural": lambda random: (structural(random), label_vectors),
    "hidden": lambda random: (hidden(random), label_vectors),
    "logistic": lambda random: (
        KernelLogisticRegression(strength(random), max_iter=50, random_state=0, **kernel(random)),
        classes,
    ),
    "classes": lambda random: (
        MultiClassSVM(strength(random), max_iter=20, random_state=0, **kernel(random)),
        classes,
    ),
    "crf": lambda random: (ChainCRF(strength(random), max_iter=20), classes),
    "chain": lambda random: (
        ChainSVM(
            strength(random),
            coupling_penalty=strength(random),
            max_iter=20,
            random_state=0,
            **kernel(random),
        ),
        classes,
    ),
}


def fit_and_predict(name: str, seed: int) -> bool:
    """Return whether a random problem was learned, rather than refused."""
    random = np.random.default_rng([seed, *name.encode()])
    estimator, make_targets = MAKERS[name](random)
    rows = int(random.integers(1, 13))
    X, y = features(random, rows), make_targets(random, rows)
    if name in ("crf", "chain"):
        cut = int(random.integers(1, rows)) if rows > 1 else rows
        X, y = ([part for part in (each[:cut], each[cut:]) if part.shape[0]] for each in (X, y))
    weights = {} if random.random() < 0.8 else {"sample_weight": random.choice([0.0, 1e-6, 1.0, 5.0], rows)}
    if "sample_weight" not in signature(estimator.fit).parameters:
        weights = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(X, y, **weights)
            predicted, shares = answers(estimator, X, y, random)
    except ValueError as error:
        # Names an argument, and says what was expected: not a message from inside.
        if re.search(r"expected|Expected|parameter of|n_splits|^Sample weights", str(error)):
            return False
        raise
    assert np.isin(predicted, np.unique(np.concatenate(y) if isinstance(y, list) else y)).all() or (
        np.isin(predicted, [0, 1]).all()
    )
    assert ((shares >= 0) & (shares <= 1 + 1e-9)).all()
    return True


def answers(estimator: Any, X: Any, y: Any, random: Random) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and probabilities of a fitted estimator, after calls of its other methods."""
    if isinstance(y, np.ndarray) and y.ndim == 2 and hasattr(estimator, "decode"):
        estimator.decode(X, known=np.where(random.random(y.shape) < 0.3, y, np.nan))
    if isinstance(estimator, ConformalClassifier):
        certain, possible = estimator.predict_set(X)
        assert not (certain & ~possible).any()
    predicted = estimator.predict(X)
    shares = estimator.predict_proba(X) if hasattr(estimator, "predict_proba") else np.zeros(1)
    if isinstance(estimator, LINEAR) and random.random() < 0.3:
        str(estimator.explain(X[:1]))
    return _together(predicted), _together(shares)


def _together(found: Any) -> np.ndarray:
    """Return an array, or those of several sequences."""
    return np.concatenate(found) if isinstance(found, list) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*MAKERS], help=", ".join(MAKERS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--fits", type=int, default=10_000, help="of each kind")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MAKERS):
        raise SystemExit(f"expected some of {list(MAKERS)}, got {sorted(unknown)}")
    seeds = range(arguments.first, arguments.first + arguments.fits)
    faults = sum(faults_among(name, seeds) for name in arguments.names)
    raise SystemExit(min(faults, 1))


def faults_among(name: str, seeds: range) -> int:
    """Fit to these problems and show what fails or lasts."""
    begun, learned, faults = time.process_time(), 0, 0
    for seed in seeds:
        before = time.process_time()
        try:
            learned += fit_and_predict(name, seed)
        except Exception:
            faults += 1
            print(f"{name}, seed {seed}:\n{traceback.format_exc()}", flush=True)
        if (spent := time.process_time() - before) > LONG:
            faults += 1
            print(f"{name}, seed {seed}: {spent:.0f} s", flush=True)
    milliseconds = 1e3 * (time.process_time() - begun) / len(seeds)
    print(
        f"{name}: {learned} of {len(seeds)} learned, {faults} faults, {milliseconds:.1f} ms each", flush=True
    )
    return faults


if __name__ == "__main__":
    main()
