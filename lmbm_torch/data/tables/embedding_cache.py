"""A cache for embeddings of pretrained models, computed once for each text or image."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from lmbm_torch.checks import level_of_caller
from lmbm_torch.data.tables.pretrained import PretrainedModel
from lmbm_torch.extras import naming_extras
from lmbm_torch.persistence import archives
from lmbm_torch.shapes import Float

ENDING = ".safetensors"
# Number of texts or images after which a file is written, so that an interrupted run keeps most embeddings.
PER_FILE = 4096


def platform_folder() -> Path:
    """Return the library's folder for caches on the platform, such as ``~/.cache/lmbm_torch``."""
    with naming_extras():
        from platformdirs import user_cache_path
    return user_cache_path("lmbm_torch", appauthor=False)


class EmbeddingCache:
    """A cache for the embeddings of one model, by the SHA-256 of texts or images, in files with checksums.

    Args:
        model: the model; the files of each model are in a folder named by the model's SHA-256.
        folder: folder for all models; None for no cache.
    """

    def __init__(self, model: PretrainedModel, folder: str | PathLike | None) -> None:
        self.model = model
        self.folder = None if folder is None else Path(folder) / model.content
        self._known = dict(self._read())

    def embed(self, contents: Sequence[bytes]) -> Float[np.ndarray, "contents features"]:
        """Return the features of texts or images, see :meth:`PretrainedModel.embed`; known ones are read.

        Raises:
            OSError: the folder is not writable.
        """
        keys = [hashlib.sha256(content).digest() for content in contents]
        new = {key: content for key, content in zip(keys, contents, strict=True) if key not in self._known}
        left = [*new]
        for some in (left[first : first + PER_FILE] for first in range(0, len(left), PER_FILE)):
            values = self.model.embed([new[key] for key in some])
            self._known |= zip(some, values, strict=True)
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                name = hashlib.sha256(b"".join(some)).hexdigest()[:32]
                array = np.frombuffer(b"".join(some), np.uint8).reshape(-1, 32)
                content = {"model": self.model.content, "keys": array.copy(), "values": values}
                archives.write(self.folder / f"{name}{ENDING}", content, "w")
        return np.array([self._known[key] for key in keys], np.float32).reshape(-1, self.model.num_features)

    def _read(self) -> Iterator[tuple[bytes, np.ndarray]]:
        """Yield the entries of all files.

        Warns:
            UserWarning: a file is corrupted, or of another program or model; such a file is skipped.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        for file in sorted(self.folder.glob(f"*{ENDING}")):
            try:
                found = archives.read(file)
                if not isinstance(found, dict) or found.get("model") != self.model.content:
                    raise ValueError(
                        f"path: {file}: expected embeddings of {self.model.title}, got another file"
                    )
                keys, values = found["keys"], found["values"]
                shapes = keys.shape, values.shape
                if (
                    shapes != ((len(keys), 32), (len(keys), self.model.num_features))
                    or not np.isfinite(values).all()
                ):
                    raise ValueError(f"path: {file}: expected finite embeddings, got shapes {shapes}")
            except (ValueError, KeyError, AttributeError) as error:
                message = f"cache: the file is left out and may be removed: {error}"
                warnings.warn(message, stacklevel=level_of_caller())
                continue
            yield from zip(map(bytes, keys), values, strict=True)
