"""Encoders of a single column of texts or images, as transformers for scikit-learn."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.checks import is_missing
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import NamedColumn, Table
from lmbm_torch.data.tables.frames import as_column, column_names, is_frame, open_frame
from lmbm_torch.data.tables.pictures import fit_image_column
from lmbm_torch.data.tables.texts import fit_text_column, is_sparse


class SingleEncoder(TransformerMixin, BaseEstimator):
    """The base class of transformers of a single column.

    Attributes:
        column_: the encoded column.
    """

    column_: NamedColumn

    @abstractmethod
    def _fitted(self, table: Table, name: str) -> NamedColumn:
        """Return the encoded column of a table."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the encoding of a column.

        Args:
            X: (rows,), texts in a list, array or series, with None for missing texts; or a one-column frame.
            y: ignored.

        Raises:
            OSError: there is no pretrained model with the name.
            TypeError: values are no texts.
            ValueError: a parameter is invalid, there are several columns, or nothing can be learned.
        """
        table = _table(X, type(self).__name__.removesuffix("Encoder").lower())
        (name,) = table.columns
        self.column_ = self._fitted(table, name)
        self.n_features_in_ = 1
        return self

    def transform(self, X: Any) -> Features:
        """Return the features of a column, (rows, features), float64; CSR for tf-idf, otherwise dense.

        Raises:
            TypeError, ValueError: see :meth:`fit`; also if the files of a pretrained model have changed.
        """
        check_is_fitted(self)
        table = _table(X, self.column_.name)
        (name,) = table.columns
        own = Table(table.name, {self.column_.name: table.columns[name]}, folder=table.folder)
        sparse = is_sparse(self.column_)
        found = self.column_.features(self.column_.values(own), [], sparse)
        return found.tocsr() if sparse else found

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features, which begin with the name of the column."""
        check_is_fitted(self)
        return np.array(self.column_.feature_names, dtype=object)


class TextEncoder(SingleEncoder):
    """A transformer of texts: tf-idf of words or characters, and embeddings of pretrained models.

    For a pretrained model, :func:`lmbm_torch.save` writes the name, the commit and the SHA-256 of the files;
    new texts are encoded only if the SHA-256 is unchanged. Models are read from safetensors, without code of
    a hub.

    Args:
        encoder: ``text_encoder`` of :class:`~lmbm_torch.data.tables.encoding.TableOptions`.
        cache: folder that keeps embeddings; None for the platform's folder of caches.

    Examples:
        >>> from lmbm_torch.data import TextEncoder
        >>> encoder = TextEncoder().fit(["red fruit", "red oak", "dry oak"])
        >>> encoder.get_feature_names_out().tolist()
        ['text:oak', 'text:red']
        >>> encoder.transform(["red", "oak and red"]).toarray().round(2)
        array([[0.  , 1.  ],
               [0.71, 0.71]])
    """

    def __init__(self, encoder="tfidf", *, cache=None):
        self.encoder = encoder
        self.cache = cache

    def _fitted(self, table: Table, name: str) -> NamedColumn:
        return fit_text_column(name, table.columns[name], self.encoder, self.cache)


class ImageEncoder(SingleEncoder):
    """A transformer of paths of image files: learned convolutions, pixels, or features of a pretrained model.

    ``"small_cnn"`` learns 128 filters from patches of the training images, without labels, and sums their
    responses over each quarter of an image (Coates, Lee and Ng 2011), which gives 512 features. ``"pixels"``
    is for neural networks that learn convolutions, such as :class:`~lmbm_torch.models.ConvolutionalEncoder`.
    For pretrained models, files hold the same as for :class:`TextEncoder`.

    Args:
        encoder: ``image_encoder`` of :class:`~lmbm_torch.data.tables.encoding.TableOptions`.
        size: height and width to which ``"small_cnn"`` and ``"pixels"`` resize images.
        cache: folder that keeps embeddings; None for the platform's folder of caches.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from lmbm_torch.data import ImageEncoder
        >>> file = tempfile.mkdtemp() + "/red.png"
        >>> Image.new("RGB", (20, 10), "red").save(file)
        >>> ImageEncoder("pixels", size=8).fit_transform([file])[:, ::64]
        array([[1., 0., 0.]])
    """

    def __init__(self, encoder="small_cnn", *, size=32, cache=None):
        self.encoder = encoder
        self.size = size
        self.cache = cache

    def _fitted(self, table: Table, name: str) -> NamedColumn:
        return fit_image_column(table, name, self.encoder, self.size, self.cache)


def _table(X: Any, name: str) -> Table:
    """Convert a column of texts to a table.

    Raises:
        TypeError: values are no texts.
        ValueError: there are several columns, or no row.
    """
    if not is_frame(X) and not isinstance(X, Table):
        texts = np.asarray(X, dtype=object)
        if texts.ndim == 2 and texts.shape[1] == 1:
            texts = texts[:, 0]
        if texts.ndim != 1 or not len(texts):
            raise ValueError(f"X: expected texts of shape (rows,), got shape {texts.shape}")
        X = Table("X", {str(getattr(X, "name", None) or name): as_column(texts)})
    elif len(names := column_names(X) if is_frame(X) else [*X.columns]) != 1:
        raise ValueError(f"X: expected a data frame of one column, got the columns {names}")
    table = open_frame(X)
    if any(values.dtype != object and not is_missing(values).all() for values in table.columns.values()):
        raise TypeError("X: expected texts, got numbers or dates")
    return table
