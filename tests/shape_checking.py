"""Annotated shapes, enforced while tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
from beartype import beartype


def checker(function: Any) -> Callable[..., Any]:
    """Enforces the annotations of a function; those inside functions would take a millisecond to be made."""
    return function if "<locals>" in function.__qualname__ else beartype(function)


@contextmanager
def shape_checks() -> Iterator[None]:
    """Annotated shapes are enforced."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", False)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
