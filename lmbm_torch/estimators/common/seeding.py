"""Seeds that a classifier hands to the estimators within it."""

from __future__ import annotations

from typing import Any

from sklearn.utils import check_random_state


def seeds_for(estimator: Any, random_state: Any) -> dict[str, int]:
    """Seeds for an estimator, and those within it, that have none of their own.

    Args:
        estimator: with scikit-learn's ``get_params``.
        random_state: from which the seeds are drawn; None for no seeds.

    Returns:
        What ``estimator.set_params`` takes.
    """
    if random_state is None:
        return {}
    random = check_random_state(random_state)
    return {
        name: int(random.randint(2**31 - 1))
        for name, value in sorted(estimator.get_params(deep=True).items())
        if (name == "random_state" or name.endswith("__random_state")) and value is None
    }
