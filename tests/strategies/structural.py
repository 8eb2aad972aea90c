"""Random structural SVMs: label vectors of every form, and words of letters, which have several rows each."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.solvers.structural.label_vectors import Decoder, label_vector_problem
from lmbm_torch.solvers.structural.problems import CuttingPlanes, Maximisers, StructuralProblem, gathered
from strategies.label_problems import random_inputs


def random_label_problem(
    seed: int,
    *,
    instances: int = 12,
    num_features: int = 3,
    num_labels: int = 3,
    chain: bool = False,
    csr: bool = False,
    weighted: bool = False,
    C: float = 1.0,
    coupling_penalty: float = 1.0,
    decoder: Decoder = exact.decode,
) -> StructuralProblem:
    """A problem of label vectors, all or neighbouring labels coupled; the same for the same arguments."""
    features, labels = random_inputs(seed, instances, num_features, num_labels)
    random = np.random.default_rng(seed + 1)
    weight = 2 * random.random(instances) * (random.random(instances) < 0.8)
    pairs = [pair for pair in combinations(range(num_labels), 2) if not chain or pair[1] == pair[0] + 1]
    return label_vector_problem(
        sparse.csr_array(features) if csr else features,
        labels,
        decoder,
        pairs=pairs,
        C=C,
        sample_weight=weight if weighted else None,
        coupling_penalty=coupling_penalty,
    )


def label_problems() -> st.SearchStrategy[StructuralProblem]:
    """Problems of label vectors of every form, from a single instance and label on."""
    return st.builds(
        random_label_problem,
        seed=st.integers(0, 2**32 - 2),
        instances=st.integers(1, 15),
        num_features=st.integers(1, 4),
        num_labels=st.integers(1, 4),
        chain=st.booleans(),
        csr=st.booleans(),
        weighted=st.booleans(),
        C=st.sampled_from((0.03, 1.0, 10.0)),
        coupling_penalty=st.sampled_from((0.5, 1.0, 30.0)),
    )


class WordOracle:
    """Loss-augmented decoding of short words by enumeration: transitions between letters are couplings."""

    def __init__(self, words: list[np.ndarray], start: np.ndarray, num_letters: int) -> None:
        self.words, self.start, self.num_letters = words, start, num_letters

    def __call__(self, scores: np.ndarray, couplings: np.ndarray, examples: np.ndarray) -> Maximisers:
        sizes = [len(self.words[each]) for each in examples]
        found, bounds = [], []
        for each, fields in zip(examples, np.split(scores, np.cumsum(sizes)[:-1]), strict=True):
            planes = self.planes(each)
            values = planes.loss.copy()
            for p in range(len(planes)):
                entries = slice(planes.start[p], planes.start[p + 1])
                index = planes.index[entries]
                # Negative numbers count couplings from the last position but one of what follows.
                local = np.concatenate([fields.ravel(), couplings[::-1]])
                values[p] -= planes.value[entries] @ local[index]
            found.append((planes, values.argmax(keepdims=True)))
            bounds.append(values.max())
        return Maximisers(gathered(found), np.array(bounds))

    def planes(self, each: int) -> CuttingPlanes:
        """Every word as long as this one."""
        word, size = self.words[each], self.num_letters
        spellings = np.array(list(product(range(size), repeat=len(word))))
        unary = np.eye(size)[word] - np.eye(size)[spellings]
        pairs = np.eye(size * size)
        couplings = pairs[word[:-1] * size + word[1:]].sum(0) - pairs[
            spellings[:, :-1] * size + spellings[:, 1:]
        ].sum(1)
        loss = (spellings != word).sum(1).astype(float)
        example = np.full(len(spellings), each)
        return CuttingPlanes.from_dense(example, loss, unary.reshape(len(spellings), -1), couplings)


def random_words(
    seed: int, *, num_words: int = 6, num_letters: int = 3, num_features: int = 4, csr: bool = False
) -> tuple[StructuralProblem, CuttingPlanes]:
    """Words of one to three letters, and the planes of all words."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, num_words)
    start = np.concatenate([[0], sizes.cumsum()])
    words = [random.integers(0, num_letters, size) for size in sizes]
    shapes = random.normal(size=(num_letters, num_features))
    rows = shapes[np.concatenate(words)] + random.normal(size=(start[-1], num_features))
    oracle = WordOracle(words, start, num_letters)
    problem = StructuralProblem.from_rows(
        sparse.csr_array(rows) if csr else rows,
        oracle,
        num_outputs=num_letters,
        num_couplings=num_letters**2,
        start=start,
        coupling_penalty=2.0,
    )
    planes = oracle.planes(0)
    for each in range(1, num_words):
        more = oracle.planes(each)
        planes, _ = planes.join(more, np.arange(len(planes)), np.arange(len(more)))
    return problem, planes
