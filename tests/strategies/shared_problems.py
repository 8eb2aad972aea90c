"""Random hinge problems of Boltzmann machines, in every form that they have."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from lmbm_torch.solvers.machines.problem import SharedProblem
from strategies.label_problems import random_inputs

FORMS = ("pairwise", "independent", "large", "tied", "mixed")


def random_shared_problem(
    seed: int,
    *,
    form: str = "pairwise",
    instances: int = 25,
    num_features: int = 4,
    num_labels: int = 4,
    csr: bool = False,
    weighted: bool = False,
    bias: bool = True,
    C: float = 1.0,
    coupling_penalty: float = 10.0,
    margin: float = 1.0,
) -> SharedProblem:
    """The same problem for the same arguments.

    Args:
        seed: of everything random.
        form: every pair; no clique; sets of any size; sets of any size in groups; sets of any size in groups,
            half of them with a feature.
        csr: features in CSR.
        weighted: sample weights between 0 and 2, some of them 0.
    """
    features, labels = random_inputs(seed, instances, num_features, num_labels)
    random = np.random.default_rng(seed + 1)
    sets = [c for size in range(1, num_labels + 1) for c in combinations(range(num_labels), size)]
    drawn = [sets[c] for c in random.integers(len(sets), size=6)]
    grouped = {"groups": [0, 1, 1, 0, 2, 2]}
    held = {
        "clique_features": [None if place % 2 else int(random.integers(num_features)) for place in range(6)]
    }
    cliques: dict = {
        "pairwise": {},
        "independent": {"cliques": ()},
        "large": {"cliques": drawn},
        "tied": {"cliques": drawn, **grouped},
        "mixed": {"cliques": drawn, **grouped, **held},
    }[form]
    weight = 2 * random.random(instances) * (random.random(instances) < 0.8)
    return SharedProblem.from_labels(
        sparse.csr_array(features) if csr else features,
        labels,
        **cliques,
        bias=bias,
        C=C,
        coupling_penalty=coupling_penalty,
        sample_weight=weight if weighted else None,
        margin=margin,
    )


def shared_problems() -> st.SearchStrategy[SharedProblem]:
    """Problems of every form, from a single instance and label on."""
    return st.builds(
        random_shared_problem,
        seed=st.integers(0, 2**32 - 2),
        form=st.sampled_from(FORMS),
        instances=st.integers(1, 30),
        num_features=st.integers(1, 5),
        num_labels=st.integers(1, 5),
        csr=st.booleans(),
        weighted=st.booleans(),
        bias=st.booleans(),
        C=st.sampled_from((0.01, 1.0, 30.0)),
        coupling_penalty=st.sampled_from((0.5, 10.0, 1000.0)),
        margin=st.sampled_from((0.5, 1.0, 3.0)),
    )
