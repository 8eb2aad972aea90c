"""The hinge problems of a sigmoid belief network, one for each label, with a kernel in place of features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Unpack

import numpy as np
import torch

from lmbm_torch.checks import check_permutation, check_positive
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks.problems import NetworkProblems, NetworkSettings, network_structure

# Largest number of kernel rows in memory at once.
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class KernelLabelProblems(NetworkProblems):
    """The problems with the joint kernel k(x, x') + 1 + c ⟨s_pa, s'_pa⟩, s_pa the parents' spins.

    The field z_lk = Σ_j β_jk k(x_j, x_l) + ⟨v_k, context_l⟩ is linear in the parents, so decoding costs as
    much as without a kernel. Weights are (instances + columns of the context, labels): first β, then v. All
    labels use the same kernel values. Use :meth:`from_labels`.

    Args:
        gram: the kernel values k(x, x') of the features.
        scale: (columns of the context,), the weight of each column in the joint kernel: 1 for the constant, c
            for the others.
    """

    gram: Gram
    scale: np.ndarray

    @classmethod
    def from_labels(
        cls, gram: Gram, labels: np.ndarray, *, parent_scale: float = 1.0, **settings: Unpack[NetworkSettings]
    ) -> KernelLabelProblems:
        """Build the problems like :meth:`LabelProblems.from_labels`, with kernel values in place of features.

        Args:
            gram: positive semidefinite kernel values, on the CPU.
            parent_scale: factor of the part of the joint kernel that comes from parents and cliques; the
                part of the features has the factor 1. A larger factor penalises weights of parents less.

        Raises:
            ValueError: see :meth:`LabelProblems.from_labels`; ``parent_scale`` is not above zero.
        """
        check_positive("parent_scale", parent_scale)
        structure = network_structure(gram.num_instances, labels, **settings)
        scale = np.full(structure["context"].shape[1], float(parent_scale))
        scale[0] = 1.0
        return cls(gram=gram, scale=scale, **structure)

    @property
    def num_features(self) -> int:
        return self.num_instances

    def in_order(self, ordering: np.ndarray) -> KernelLabelProblems:
        """Return the problems in another ordering, (labels,), without the checks that were already made.

        Raises:
            ValueError: the problems have cliques, or the ordering is no permutation.
        """
        if self.cliques:
            raise ValueError(f"cliques: expected no cliques for another ordering, got {len(self.cliques)}")
        check_permutation("ordering", ordering, self.num_labels)
        place = np.argsort(self.ordering)[ordering]
        columns = np.concatenate([[0], 1 + place])
        return replace(
            self,
            spins=self.spins[place],
            # Keep the row-major order of the original, which the solvers read fastest.
            context=np.take(self.context, columns, axis=1),
            upper=self.upper if self.upper.ndim == 1 else self.upper[place],
            ordering=np.array(ordering, np.int64),
        )

    @cached_property
    def parents(self) -> np.ndarray:
        """Return a mask (labels, labels) by index, whose row k marks the parents of label k."""
        by_label = np.argsort(self.ordering)
        return self.sees[1 : 1 + self.num_labels].T[np.ix_(by_label, by_label)]

    def among(self, index: np.ndarray) -> np.ndarray:
        """Return the kernel values among some instances, (rows, rows), in single precision."""
        values = np.empty((len(index), len(index)), np.float32)
        columns, step = torch.from_numpy(index), self._rows_at_once()
        for first in range(0, len(index), step):
            rows = slice(first, first + step)
            values[rows, first:] = self.gram.between(columns[rows], columns[first:]).numpy()
            values[first:, rows] = values[rows, first:].T
        return values

    def fields(self, weights: np.ndarray) -> np.ndarray:
        """Return the fields z, (instances, labels), for ``weights`` (columns, labels)."""
        coef = weights[: self.num_instances]
        return self.expansions(coef) + self.context @ weights[self.num_instances :]

    def expansions(self, coef: np.ndarray) -> np.ndarray:
        """Return the kernel expansions Σ_j coef_jk k(x_j, x_l), like ``coef`` (instances, labels)."""
        fields = np.zeros(coef.shape)
        support = np.flatnonzero(coef.any(1))
        if len(support) > self.num_instances / 2:
            for first, values in self.triangle():
                last = first + len(values)
                fields[first:last] += values @ coef[first:]
                fields[last:] += values[:, len(values) :].T @ coef[first:last]
            return fields
        step = self._rows_at_once()
        for first in range(0, len(support), step):
            index = support[first : first + step]
            values = self.gram.between(torch.from_numpy(index), slice(None))
            fields += values.double().numpy().T @ coef[index]
        return fields

    def triangle(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of the kernel matrix that cover all values on and above the diagonal.

        A block is the number f of its first row, and the kernel values in columns f, f + 1, … as float64.
        """
        step = self._rows_at_once()
        for first in range(0, self.num_instances, step):
            values = self.gram.between(slice(first, first + step), slice(first, None))
            yield first, values.double().numpy()

    def _rows_at_once(self) -> int:
        row = 8 * self.num_instances
        return max(1, part_bytes(_ROWS_AT_ONCE * row) // row)

    def contextual(self, coef: np.ndarray) -> np.ndarray:
        """Return the context's part of the fields, (instances, labels), for ``coef`` (instances, labels)."""
        return self.context @ self._context_weights(coef)

    def square_norms(self, weights: np.ndarray) -> np.ndarray:
        """Return the squared norms ‖w_k‖² = Σ_l β_lk z_lk, (labels,), for weights computed from duals."""
        return (weights[: self.num_instances] * self.fields(weights)).sum(0)

    def weights(self, dual_coef: np.ndarray) -> np.ndarray:
        """Return the weights of duals: β_lk = α_lk s_lk, then v_k = scale Σ_l β_lk context_l."""
        signed = (dual_coef * self.spins).T
        return np.vstack([signed, self._context_weights(signed)])

    def _context_weights(self, coef: np.ndarray) -> np.ndarray:
        return self.scale[:, None] * (self.context.T @ coef) * self.sees
