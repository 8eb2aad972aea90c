"""An encoder of data frames as a transformer for scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.data.features import Features, numbered
from lmbm_torch.data.tables.columns import Table
from lmbm_torch.data.tables.encoding import LARGEST_DENSE, Encoding, TableOptions, fit_encoding
from lmbm_torch.data.tables.frames import column_names, is_frame, open_frame


class TableEncoder(TransformerMixin, BaseEstimator):
    """A transformer of data frames of pandas, polars and Arrow to features, dense or CSR.

    Numbers become features without a change, and bools become 0 and 1. Dates become year, month, day, weekday
    and hour. Categories become indicators, and free texts become tf-idf of their words. Missing numbers and
    dates are replaced by the median, missing texts by the most frequent category; texts such as ``NULL`` and
    ``n/a`` count as missing, as in pandas. Texts are categories if they are repeated, and free texts if most
    have two words; other texts identify the rows and are left out.

    Columns are found by name in any order. :func:`lmbm_torch.save` writes a fitted encoder without pickle.

    Args:
        categorical, text, ignore, missing, unknown, odd_numbers, max_categories, sparse: see
            :class:`~lmbm_torch.data.tables.encoding.TableOptions`.
        text_encoder, image, image_encoder, image_size, cache: see the same class.

    Attributes:
        encoding_: the columns with categories, words and replacements of missing values.
        feature_names_in_: names of the columns of the training frame.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import TableEncoder
        >>> frame = pd.DataFrame({"town": ["Rome", "Oslo", None], "age": [3, None, 8]})
        >>> encoder = TableEncoder().fit(frame)
        >>> encoder.get_feature_names_out().tolist()
        ['town=Oslo', 'town=Rome', 'age']
        >>> encoder.transform(frame)
        array([[0. , 1. , 3. ],
               [1. , 0. , 5.5],
               [1. , 0. , 8. ]])
    """

    def __init__(
        self,
        *,
        categorical=(),
        text=(),
        text_encoder="tfidf",
        image=(),
        image_encoder="small_cnn",
        image_size=32,
        cache=None,
        ignore=(),
        missing="impute",
        unknown="warn",
        odd_numbers="refuse",
        max_categories=1000,
        sparse=None,
    ):
        self.categorical = categorical
        self.text = text
        self.text_encoder = text_encoder
        self.image = image
        self.image_encoder = image_encoder
        self.image_size = image_size
        self.cache = cache
        self.ignore = ignore
        self.missing = missing
        self.unknown = unknown
        self.odd_numbers = odd_numbers
        self.max_categories = max_categories
        self.sparse = sparse

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn categories, words and replacements of missing values from a data frame.

        Args:
            X: (instances, columns), a data frame.
            y: labels in any form; a column from which a label can be read in every row is named in a warning.

        Raises:
            TypeError: X is no data frame.
            ValueError: a parameter or a column is invalid; the message names all invalid columns.

        Warns:
            UserWarning: see :func:`~lmbm_torch.data.tables.encoding.fit_encoding`.
        """
        table, options = open_frame(_checked(X)), TableOptions(**self.get_params(deep=False))
        labels, names = _two_valued_columns(y)
        if labels is not None and len(labels) != table.num_rows:
            labels = None
        self.encoding_: Encoding = fit_encoding(table, options, labels, names)
        self.feature_names_in_ = np.array(list(table.columns), dtype=object)
        self.n_features_in_ = len(table.columns)
        return self

    def transform(self, X: Any) -> Features:
        """Return the features of a data frame, (instances, features), float64, dense or CSR.

        Raises:
            TypeError: X is no data frame.
            ValueError: see :meth:`~lmbm_torch.data.tables.encoding.Encoding.features`.

        Warns:
            UserWarning: there are columns, categories or texts that training did not have; see ``unknown`` of
                :class:`~lmbm_torch.data.tables.encoding.TableOptions`.
        """
        check_is_fitted(self)
        return self.encoding_.features(open_frame(_checked(X)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features, such as ``age`` and ``town=Oslo``."""
        check_is_fitted(self)
        return np.array(self.encoding_.feature_names, dtype=object)


def _checked(X: Any) -> Any:
    if not is_frame(X) and not isinstance(X, Table):
        raise TypeError(f"X: expected a data frame of pandas, polars or Arrow, got {type(X).__name__}")
    return X


def _two_valued_columns(y: Any) -> tuple[np.ndarray | None, list[str]]:
    """Return labels in {0, 1, NaN}, or NaN for labels of more than two values, and names of the labels."""
    if y is None:
        return None, []
    if is_frame(y):
        names, columns = column_names(y), [np.asarray(each) for each in open_frame(y).columns.values()]
    else:
        try:
            found = y.toarray() if issparse(y) else np.asarray(y)
        except ValueError:
            # y consists of lists of names of labels.
            return None, []
        if found.ndim not in (1, 2) or found.size > LARGEST_DENSE:
            return None, []
        columns = list(found.reshape(len(found), -1).T)
        names = list(numbered("label", len(columns)))
    return np.column_stack([_as_truths(column) for column in columns]), names


def _as_truths(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind in "biuf":
        column = column.astype(np.float64)
        known = ~np.isnan(column)
        values = [column.min(where=known, initial=np.inf), column.max(where=known, initial=-np.inf)]
        known &= np.isin(column, values)
    else:
        known = np.array([value is not None and value == value for value in column.tolist()], np.bool_)
        values = sorted(set(column[known].tolist()), key=str)
    return np.where(known & (len(set(values)) == 2), column == values[-1:], np.nan)
