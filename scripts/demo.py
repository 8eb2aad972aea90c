"""Why dependent outputs matter, in a minute: handwritten digits as seven segments of a display.

Seven labels, of whose 128 combinations only ten are digits. Classifiers that decide each segment alone often
show no digit at all; a sigmoid belief network decodes all seven together, and proves that its answer is the
best. Every C is chosen by cross-validation on the training half.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.base import BaseEstimator
from sklearn.metrics import hamming_loss
from sklearn.model_selection import GridSearchCV, KFold

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common.baselines import classifier_chain, independent_svm
from lmbm_torch.files import write_figure
from lmbm_torch.inference.search import beam_search
from lmbm_torch.viz.images import segment_displays

FIGURE_COLUMNS = 14
PENALTIES = np.logspace(-3, 1, 9)


def cross_validated(model: BaseEstimator, parameter: str, X: np.ndarray, Y: np.ndarray) -> GridSearchCV:
    """Return the model refitted at the C of best cross-validated exact match."""
    folds = KFold(5, shuffle=True, random_state=0)
    return GridSearchCV(model, {parameter: PENALTIES}, cv=folds, scoring="accuracy").fit(X, Y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--figure", type=Path, help="draw what the displays show for some images to this file"
    )
    figure = parser.parse_args().figure
    digits = SevenSegment()
    X, Y = digits.features[digits.train], digits.labels[digits.train].astype(int)
    X_test, Y_test = digits.features[digits.test], digits.labels[digits.test].astype(int)
    codes = SevenSegment.codes().astype(int)

    table = Table(title="Seven segments of handwritten digits: 7 labels, 10 of 128 labellings occur")
    table.add_column("model")
    for column in ("C", "exact match", "Hamming loss", "shows a digit"):
        table.add_column(column, justify="right")

    def add(name: str, C: float, labels: np.ndarray) -> None:
        exact = (labels == Y_test).all(1).mean()
        digit = (labels[:, None, :] == codes).all(2).any(1).mean()
        table.add_row(name, f"{C:.3g}", f"{exact:.3f}", f"{hamming_loss(Y_test, labels):.3f}", f"{digit:.1%}")

    console = Console()
    console.print(f"{len(X)} training images, {len(X_test)} test images, {X.shape[1]} pixels each\n")
    with console.status("cross-validating independent SVMs (scikit-learn)"):
        independent = cross_validated(independent_svm(), "estimator__C", X, Y)
    alone = independent.predict(X_test).astype(int)
    add("independent SVMs", independent.best_params_["estimator__C"], alone)
    with console.status("cross-validating a classifier chain (scikit-learn)"):
        chain = cross_validated(classifier_chain(), "estimator__C", X, Y)
    add("classifier chain, greedy", chain.best_params_["estimator__C"], chain.predict(X_test).astype(int))
    with console.status("cross-validating the sigmoid belief network"):
        network = cross_validated(LMSBNClassifier(random_state=0), "C", X, Y)
    C, model = network.best_params_["C"], network.best_estimator_
    greedy = beam_search.decode_hinge(model.energy(X_test), model.margin, width=1)
    add("LMSBN, greedy", C, greedy.labels.numpy())
    model.decode(X_test[:1])
    started = time.perf_counter()
    decoding = model.decode(X_test)
    seconds = time.perf_counter() - started
    add("LMSBN, exact", C, decoding.labels.numpy())
    console.print(table)

    assert decoding.nodes is not None
    nodes = decoding.nodes.double()
    console.print(
        f"certificates: {decoding.status.exact.double().mean():.1%} proven optimal, "
        f"{nodes.mean():.1f} nodes visited on average ({int(nodes.max())} at most, of 254), "
        f"{1e6 * seconds / len(X_test):.1f} µs per image\n"
        f"training: relative duality gap {model.duality_gap_:.1e}; "
        f"at most {model.error_bound_:.1%} of the training images can be decoded wrongly, "
        f"{1 - model.score(X, Y):.1%} are"
    )
    if figure is not None:
        shown = np.flatnonzero((alone != Y_test).any(1))[:FIGURE_COLUMNS]
        images = X_test[shown].reshape(-1, 8, 8)
        answers = {"independent SVMs": alone[shown], "LMSBN, exact": decoding.labels.numpy()[shown]}
        write_figure(figure, segment_displays(images, Y_test[shown], answers))


if __name__ == "__main__":
    main()
