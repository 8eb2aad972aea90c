"""Random label problems, the features that each label sees in them, and their optimum by a convex solver."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from lmbm_torch.references import hinge_primal
from lmbm_torch.solvers.networks.problems import LabelProblems


def random_inputs(
    seed: int, instances: int, num_features: int, num_labels: int, *, missing: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Half-empty features, and labels that depend on them and on each other; NaN for a ``missing`` share."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(instances, num_features))
    features *= random.random(features.shape) < 0.5
    scores = features @ random.normal(size=(num_features, num_labels))
    scores += 0.7 * np.roll(scores, 1, axis=1) + random.normal(size=scores.shape)
    labels = (scores > 0).astype(np.float64)
    labels[random.random(labels.shape) < missing] = np.nan
    return features, labels


def random_problems(
    seed: int,
    *,
    instances: int = 25,
    num_features: int = 4,
    num_labels: int = 3,
    num_cliques: int = 0,
    parents: bool = True,
    csr: bool = False,
    weighted: bool = False,
    missing: float = 0.0,
    C: float = 1.0,
    margin: float = 1.0,
) -> LabelProblems:
    """Problems in a random ordering; the same for the same arguments.

    Args:
        seed: of everything random.
        num_cliques: sets of 3 or 4 labels, members and sets in random order, or as many as there are.
        csr: features in CSR.
        weighted: sample weights between 0 and 2, some of them 0.
        missing: share of the labels.
    """
    features, labels = random_inputs(seed, instances, num_features, num_labels, missing=missing)
    random = np.random.default_rng(seed + 1)
    cliques = [
        random.permutation(c).tolist() for size in (3, 4) for c in combinations(range(num_labels), size)
    ]
    chosen = random.permutation(len(cliques))[:num_cliques]
    weight = 2 * random.random(instances) * (random.random(instances) < 0.8)
    return LabelProblems.from_labels(
        sparse.csr_array(features) if csr else features,
        labels,
        ordering=random.permutation(num_labels),
        parents=parents,
        cliques=[cliques[c] for c in chosen],
        C=C,
        sample_weight=weight if weighted else None,
        margin=margin,
    )


def label_problems(*, missing: tuple[float, ...] = (0.0,)) -> st.SearchStrategy[LabelProblems]:
    """Problems of every form, from a single instance and label on."""
    return st.builds(
        random_problems,
        seed=st.integers(0, 2**32 - 2),
        instances=st.integers(1, 30),
        num_features=st.integers(1, 5),
        num_labels=st.integers(1, 5),
        num_cliques=st.integers(0, 4),
        parents=st.booleans(),
        csr=st.booleans(),
        weighted=st.booleans(),
        missing=st.sampled_from(missing),
        C=st.sampled_from((0.01, 1.0, 30.0)),
        margin=st.sampled_from((0.5, 1.0, 3.0)),
    )


def design(problems: LabelProblems, position: int) -> np.ndarray:
    """All that the label at ``position`` sees, (instances, columns)."""
    features = problems.features
    dense = features.toarray() if sparse.issparse(features) else features
    return np.hstack([dense, problems.context[:, problems.sees[:, position]]])


def optima(problems: LabelProblems) -> np.ndarray:
    """Every label's optimum, (labels,), where the context is complete."""
    return np.array(
        [
            hinge_primal(design(problems, k), problems.spins[k], problems.upper, margin=problems.margin)[0]
            for k in range(problems.num_labels)
        ]
    )
