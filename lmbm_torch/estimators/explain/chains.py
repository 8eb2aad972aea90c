"""Explanations of chains of labels: contributions of features and of earlier labels to each label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from lmbm_torch.estimators.explain.contributions import Contributions, checked, most_effective, with_value
from lmbm_torch.estimators.explain.parts import Parts, array, like, made_names, parts_of, union


class ChainFields:
    """The distribution of each label given earlier labels in chains of binary labels, for explanations.

    Several chains form a mixture with equal weights: the contribution to a label is the mean over the chains,
    in which different labels come earlier.

    Args:
        chains: fitted :class:`~lmbm_torch.estimators.label_chains.probabilistic.Chain` objects of
            the same labels.
        names: names of the labels.
        features: names of the features of an instance; None if a pipeline makes features.
        reference: (features,), values of features that are left out, and the baseline for contributions to
            linear classifiers; by default 0.
    """

    def __init__(
        self,
        chains: Sequence[Any],
        names: Sequence[str],
        features: Sequence[str] | None,
        reference: ArrayLike | None,
    ) -> None:
        self.chains, self.names, self.features = chains, names, features
        self.reference = None
        if features is not None:
            width = len(features)
            self.reference = np.zeros(width) if reference is None else checked(reference, width)
        elif reference is not None:
            raise ValueError("reference: expected None, because the steps of a pipeline make the features")

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        count, chains = len(labels), self.chains
        every = [self._parts(chain, X, labels) for chain in chains]
        places = union(each.names for parts in every for each in parts)
        intercepts, units = np.empty(count), [""] * count
        from_sources, from_labels = np.zeros((count, len(places))), np.zeros((count, count))
        for label in range(count):
            found = [
                (parts[chain.ordering.index(label)], chain)
                for parts, chain in zip(every, chains, strict=True)
            ]
            of_chains = {parts.unit for parts, _ in found}
            (units[label],) = of_chains if len(of_chains) == 1 else {"unknown"}
            if units[label] == "unknown":
                intercepts[label] = np.mean([parts.probability for parts, _ in found])
                continue
            intercepts[label] = np.mean([parts.rest for parts, _ in found])
            for parts, chain in found:
                own, before = np.split(parts.of_inputs / len(chains), [len(parts.names)])
                # Add, because a pipeline may give several features the same name.
                np.add.at(from_sources[label], [places[name] for name in parts.names], own)
                from_labels[label, list(chain.ordering[: len(before)])] += before
        fields = intercepts + from_sources.sum(1) + from_labels.sum(1)
        whose = f"{len(chains)} chains on average" if len(chains) > 1 else ""
        return Contributions(fields, intercepts, [*places], from_sources, from_labels, units, whose)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        if self.features is None or self.reference is None:
            return
        row, reference = array(X), self.reference

        def chances(rows: np.ndarray) -> np.ndarray:
            made = like(X, rows)
            return np.mean([_chances(chain, made, len(rows), labels) for chain in self.chains], 0)

        for place in most_effective(row, reference, chances)[:count]:
            yield self.features[place], like(X, with_value(row, place, reference[place]))

    def _parts(self, chain: Any, X: Any, labels: np.ndarray) -> list[Parts]:
        """Return the contributions to the label at each position, given the instance and earlier labels."""
        seen = labels[list(chain.ordering)]
        return [self._of_link(link, X, seen[:position]) for position, link in enumerate(chain.links)]

    def _of_link(self, link: Any, X: Any, earlier: np.ndarray) -> Parts:
        inputs = link.inputs(X)
        probability = float(np.exp(link.log_proba(inputs, np.zeros(1, int), earlier[None])[0, 1]))
        seen = np.concatenate([array(inputs)[0], earlier])
        # The baseline for earlier labels is 0.
        centre = np.zeros(len(seen))
        if self.reference is not None:
            centre[: len(self.reference)] = self.reference
        found = parts_of(link.classifier, seen, probability, centre)
        if not len(found.of_inputs):
            return found
        return found._replace(names=self.features or made_names(link.steps, inputs))


def _chances(chain: Any, X: Any, instances: int, labels: np.ndarray) -> np.ndarray:
    """Return P(y_i = 1 | x, earlier labels of the chain), (instances, labels)."""
    energy, rows, ordering = (
        chain.energy(X, instances),
        torch.arange(instances, device="cpu"),
        list(chain.ordering),
    )
    seen = torch.from_numpy(labels[ordering]).expand(instances, -1)
    found = np.empty((instances, len(labels)))
    for position, label in enumerate(ordering):
        found[:, label] = energy.log_conditional(position, rows, seen[:, :position])[:, 1].exp().numpy()
    return found
