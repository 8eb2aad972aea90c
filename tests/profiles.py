"""The functions of the library that a call enters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import lmbm_torch


def entered(call: Callable[[], Any]) -> set[CodeType]:
    """Return the functions of the library entered by a call, lambdas and comprehensions not counted."""
    found, root = set(), str(Path(lmbm_torch.__file__).parent)

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
            found.add(code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def files(found: set[CodeType]) -> set[str]:
    """Return the files of functions."""
    return {code.co_filename for code in found}
