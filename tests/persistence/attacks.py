"""Nodes of a configuration that run code wherever they are instantiated, by functions of usual libraries."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

ATTACKS = ("hub", "torch", "joblib", "pandas", "numpy")


class _Leaves:
    """An object whose pickle writes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def attack(name: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """Such a node, whose files lie in a folder, and the file that exists once it has run."""
    mark, file = folder / f"{name} ran", folder / f"{name}.pickle"
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        pickle.dump(_Leaves(mark), stream)
    if name == "hub":
        (folder / "hubconf.py").write_text(
            f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef entry(*args, **kwargs):\n    pass\n"
        )
        where = {"repo_or_dir": str(folder), "model": "entry", "source": "local", "trust_repo": True}
        return {"_target_": "torch.hub.load", **where}, mark
    if name == "numpy":
        file = folder / "objects.npy"
        np.save(file, np.array([_Leaves(mark)], dtype=object), allow_pickle=True)
        return {"_target_": "numpy.load", "file": str(file), "allow_pickle": True}, mark
    return {
        "torch": {"_target_": "torch.load", "f": str(file), "weights_only": False},
        "joblib": {"_target_": "joblib.load", "filename": str(file)},
        "pandas": {"_target_": "pandas.read_pickle", "filepath_or_buffer": str(file)},
    }[name], mark
