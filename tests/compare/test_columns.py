"""Every method learns from every kind of column of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from lmbm_torch.compare import trials
from lmbm_torch.compare.methods import METHODS, Ensemble, is_installed, scalings, takes, tuned, unscaled
from lmbm_torch.data import read_table

NOTES = ["sun and sea", "snow and wind", "sun, wind and sea", "wind"]
KINDS = {
    "numbers": {"ignore": ["town", "note"]},
    "categories": {"ignore": ["size", "note"]},
    "sparse categories": {"ignore": ["size", "note"], "sparse": True},
    "texts": {"ignore": ["size", "town"], "text": "note"},
    "all": {"text": "note"},
}
# Fewer trees, rounds and members: the columns are the subject.
SMALL = {"n_estimators": 3, "max_iter": 50, "num_hidden": 2, "num_rules": 10}


@pytest.fixture(scope="module", params=KINDS)
def data(request):
    generator = np.random.default_rng(0)
    size = generator.normal(size=40)
    town, note = generator.integers(0, 3, 40), generator.integers(0, 4, 40)
    frame = pd.DataFrame(
        {
            "size": size,
            "town": np.array(["Oslo", "Rome", "Bern"])[town],
            "note": np.array(NOTES)[note],
            "sun": (size + generator.normal(size=40) > 0).astype(int),
            "sea": (town > 0) ^ (generator.random(40) < 0.2),
        }
    )
    found = read_table(frame, ["sun", "sea"], **KINDS[request.param])
    return found.with_split(np.arange(30), np.arange(30, 40))


@pytest.mark.parametrize("name", [name for name in METHODS if is_installed(name)])
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_method_learns_from_every_kind_of_column(data, name):
    if not takes(name, data.features):
        assert issparse(data.features)
        return
    method = METHODS[name]
    base = tuned(name)
    parameters = {key: SMALL.get(key.rpartition("__")[2]) for key in base.model.get_params()}
    model: Any = clone(base.model)
    model = model.set_params(**{key: value for key, value in parameters.items() if value is not None})
    model = method.gather(model).set_params(num_members=2) if isinstance(method, Ensemble) else model
    for scaling in scalings(data.features).values() if base.is_scaled else (unscaled(),):
        X, Y = trials.part(data, data.train)
        pipeline = Pipeline([("scaling", scaling), ("model", model)]).fit(X, Y)
        assert pipeline.predict(trials.part(data, data.test)[0]).shape == (10, 2)
