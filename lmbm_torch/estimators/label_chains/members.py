"""A chain of fitted links, and the distribution of label vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import check_cv
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.data.rows import some_instances
from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.estimators.label_chains.columns import MISSING
from lmbm_torch.estimators.label_chains.links import Link
from lmbm_torch.inference.sampling import ancestral


@dataclass(frozen=True, eq=False)
class Chain:
    """A fitted chain.

    Args:
        ordering: the index of the label at each position.
        num_states: number of classes of each label.
        links: the link of the label at each position.
    """

    ordering: tuple[int, ...]
    num_states: tuple[int, ...]
    links: tuple[Link, ...]

    @classmethod
    def fit(
        cls,
        estimator: Any,
        X: Any,
        codes: np.ndarray,
        ordering: np.ndarray,
        num_states: tuple[int, ...],
        weights: np.ndarray | None,
        cv: Any,
    ) -> Chain:
        """Train the links in order.

        The link of a label predicts the missing values, before later links learn from the label.

        Args:
            estimator: the unfitted classifier of every link.
            codes: (instances, labels), ``MISSING`` if unknown.
            weights: (instances, labels).
            cv: folds; later links then learn from predictions of earlier labels for held-out instances. None
                to learn from the true labels.
        """
        links: list[Link] = []
        seen = codes[:, ordering]
        states = tuple(num_states[label] for label in ordering)
        for position, label in enumerate(ordering):
            own = codes[:, label]
            weight = None if weights is None else weights[:, label]
            settings = (states[position], states[:position])
            earlier = seen[:, :position].copy()
            links.append(Link.fit(estimator, X, own, earlier, *settings, weight))
            if position + 1 == len(ordering):
                break
            missing = np.flatnonzero(own == MISSING)
            if cv is not None:
                known = np.flatnonzero(own != MISSING)
                folds: Any = check_cv(cv, own[known], classifier=True)
                for train, held_out in folds.split(known, own[known]):
                    train, held_out = known[train], known[held_out]
                    some = some_instances(X, train)
                    held_weight = None if weight is None else weight[train]
                    fold = Link.fit(
                        clone(estimator), some, own[train], earlier[train], *settings, held_weight
                    )
                    held = some_instances(X, held_out)
                    seen[held_out, position] = fold.most_probable(held, earlier[held_out])
            if len(missing):
                found = links[-1].most_probable(some_instances(X, missing), earlier[missing])
                seen[missing, position] = found
        return cls(tuple(int(label) for label in ordering), num_states, tuple(links))

    def energy(self, X: Any, instances: int) -> SequentialEnergy:
        """Return the distribution of each instance's label vectors."""
        inputs: dict[int, Any] = {}

        def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
            link = self.links[position]
            if position not in inputs:
                inputs[position] = link.inputs(X)
            return torch.from_numpy(link.log_proba(inputs[position], rows.numpy(), earlier.numpy()))

        return SequentialEnergy(instances, self.num_states, self.ordering, conditional)


# Largest number of repeated draws for an instance whose samples break rules.
MAX_DRAWS = 1000


def draws_of_mixture(
    energies: Sequence[SequentialEnergy],
    num_samples: int,
    generator: torch.Generator,
    rules: Constraints | None = None,
) -> Tensor:
    """Draw codes from the equal mixture of the members, (num_samples, instances, labels).

    Args:
        rules: samples that break rules are drawn again.

    Raises:
        ValueError: after a thousand repeated draws some sample still breaks rules.
    """
    drawn = _drawn(energies, num_samples, generator)
    if rules is None:
        return drawn
    for _ in range(MAX_DRAWS):
        flat = drawn.flatten(0, 1).numpy()
        broken = torch.from_numpy(rules.violated(flat).any(1)).unflatten(0, drawn.shape[:2])
        rows = broken.any(0).nonzero()[:, 0]
        if not len(rows):
            return drawn
        again = _drawn([energy.select(rows) for energy in energies], num_samples, generator)
        drawn[:, rows] = torch.where(broken[:, rows, None], again, drawn[:, rows])
    raise ValueError(f"constraints: expected samples that obey the rules, got none in {MAX_DRAWS} draws")


def _drawn(energies: Sequence[SequentialEnergy], num_samples: int, generator: torch.Generator) -> Tensor:
    which = torch.randint(len(energies), (num_samples,), generator=generator, device="cpu")
    drawn = torch.empty(
        num_samples, energies[0].batch_size, energies[0].num_labels, dtype=torch.int64, device="cpu"
    )
    for member, energy in enumerate(energies):
        if count := int((which == member).sum()):
            drawn[which == member] = ancestral.sample(energy, count, generator=generator)
    return drawn
