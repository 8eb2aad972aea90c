"""The cluster that a command line names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lmbm_torch.extras import naming_extras

# Seconds that a scheduler has to answer.
PATIENCE = 10


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Have a Dask cluster's workers do what is spread inside; None for here.

    Args:
        address: of its scheduler, such as ``tcp://localhost:8786``.

    Raises:
        ValueError: no scheduler answers there.
        ModuleNotFoundError: Dask is not installed.
    """
    if address is None:
        yield
        return
    with naming_extras():
        import joblib
        from distributed import Client
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        expected = "the address of a Dask scheduler, such as tcp://localhost:8786"
        raise ValueError(f"cluster: expected {expected}, got {address}: {error}") from error
    with client, joblib.parallel_config(backend="dask"):
        yield
