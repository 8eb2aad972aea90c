"""Pipelines of scikit-learn that pass on every answer of the last step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import Any, Literal

from sklearn import pipeline
from sklearn.base import BaseEstimator

from lmbm_torch.persistence.files import save


class AnsweringPipeline(pipeline.Pipeline):
    """A pipeline of scikit-learn with the answers and fitted attributes of the last step.

    Scikit-learn's own pipeline has ``predict``, ``predict_proba``, ``decision_function`` and ``score``; this
    pipeline has ``predict_names``, ``decode``, ``explain``, ``log_prob`` and so on, too, whatever the last
    step has, with instances as they come into the first step. :func:`make_pipeline` makes one.
    """

    def save(self, path: Any, mode: Literal["x", "w"] = "x") -> None:
        """Write the fitted pipeline to a file; see :func:`lmbm_torch.save`."""
        save(self, path, mode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not vars(self).get("steps"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        last: Any = self.steps[-1][1]
        found = getattr(last, name)
        if name.endswith("_"):
            return found
        if not callable(found) or [*signature(found).parameters][:1] != ["X"] or "fit" in name:
            raise AttributeError(f"{name}: expected a method of the last step for instances; see its own")
        return wraps(found)(partial(self._answer, name))

    def _answer(self, name: str, X: Any, *arguments: Any, **named: Any) -> Any:
        model: Any = self.steps[-1][1]
        if len(self.steps) > 1:
            before = self[:-1]
            X = before.transform(X)
            if name == "explain" and hasattr(before, "get_feature_names_out"):
                model = model.with_feature_names(before.get_feature_names_out())
        method: Callable[..., Any] = getattr(model, name)
        return method(X, *arguments, **named)


def make_pipeline(*steps: BaseEstimator, memory: Any = None, verbose: bool = False) -> AnsweringPipeline:
    """Return a pipeline of the steps, named as by scikit-learn, that passes on every answer of the last step.

    For arguments see :func:`sklearn.pipeline.make_pipeline`.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import TableEncoder
        >>> from lmbm_torch.estimators import LMSBNClassifier, make_pipeline
        >>> shop = pd.DataFrame({"note": ["oak", "fruit", "oak", "fruit"], "price": [9.0, 7, 12, 8]})
        >>> model = make_pipeline(TableEncoder(), LMSBNClassifier(random_state=0))
        >>> model = model.fit(shop, ["red;dry", "white", "red;dry", "white"])
        >>> model.predict_names(shop[:2])
        [('dry', 'red'), ('white',)]
        >>> model.decode(shop[:1], top_k=2).labels.shape
        torch.Size([1, 2, 3])
    """
    made = pipeline.make_pipeline(*steps, memory=memory, verbose=verbose)
    return AnsweringPipeline(made.steps, memory=memory, verbose=verbose)
