"""Certificates and their forgeries: what a liar who knows the format would try."""

from __future__ import annotations

import base64
import copy
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
# The command of ``scripts/certificate_checker``.
CHECK = importlib.import_module("certificate_checker.__main__")
Record = dict[str, Any]


def directed(batch: int, labels: int, generator: torch.Generator, dtype=torch.float64) -> DirectedEnergy:
    """A random network with cliques of three and four labels, in a random ordering."""
    ordering = torch.randperm(labels, generator=generator)
    place = torch.argsort(ordering)
    normal = [
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((batch, labels), (labels,) * 2, (2,))
    ]
    return DirectedEnergy(
        normal[0], normal[1] * (place[None] < place[:, None]), ordering, ((0, 3, 1), (1, 2, 4, 0)), normal[2]
    )


def pairwise(batch: int, labels: int, generator: torch.Generator, *, shared=True) -> PairwiseEnergy:
    """A random Boltzmann machine."""
    shape = (labels, labels) if shared else (batch, labels, labels)
    half = torch.randn(*shape, generator=generator, dtype=torch.float64).triu(1)
    unary = torch.randn(batch, labels, generator=generator, dtype=torch.float64)
    return PairwiseEnergy(unary, half + half.mT, unary[:, 0].clone())


def cliques(batch: int, labels: int, generator: torch.Generator) -> CliqueEnergy:
    """A random Boltzmann machine with cliques of one to four labels."""
    sets = (*((label,) for label in range(labels)), (0, 1), (1, 3), (2, 3, 4), (0, 1, 2, 4))
    return CliqueEnergy(sets, torch.randn(batch, len(sets), generator=generator, dtype=torch.float64))


def said(record: Record, path: Path, capsys: Any) -> str:
    """What the checker says of a certificate."""
    path.write_text(json.dumps(record))
    capsys.readouterr()
    CHECK.main([str(path)])
    return capsys.readouterr().out


def read(field: Record) -> np.ndarray:
    """A writable copy of a certificate's array."""
    dtype = np.dtype(field["dtype"])
    return np.frombuffer(base64.b64decode(field["base64"]), dtype).reshape(field["shape"]).copy()


def place(record: Record, name: str) -> Record:
    """The part of a certificate that holds an array."""
    parts = record["proof"], record["problem"], record["problem"].get("energy", {})
    return next(part for part in parts if name in part)


def replaced(record: Record, name: str, values: np.ndarray) -> Record:
    """The certificate with another array, of its proof, its problem or its energy."""
    record = copy.deepcopy(record)
    field = place(record, name)[name]
    text = base64.b64encode(np.ascontiguousarray(values, field["dtype"]).tobytes()).decode()
    field |= {"shape": list(values.shape), "base64": text}
    return record


def problem_of(record: Record):
    """The checker's view of a decoding."""
    return CHECK.decodings.Problem(record["problem"], record["proof"].get("messages"))


def changed(name: str, change: Callable[[np.ndarray, np.random.Generator], Any]) -> Callable:
    """A forgery of one array, changed in place or replaced."""

    def forge(record: Record, random: np.random.Generator) -> Record:
        values = read(place(record, name)[name])
        new = change(values, random)
        return replaced(record, name, values if new is None else new)

    return forge


def anywhere(values: np.ndarray, random: np.random.Generator) -> tuple[int, ...]:
    """A random entry."""
    return tuple(random.integers(size) for size in values.shape)


def flipped(values, random):
    values[anywhere(values, random)] ^= 1


def off(values, random):
    finite = np.argwhere(np.isfinite(values))
    values[tuple(finite[random.integers(len(finite))])] += random.choice([-1e-6, 1e-6])


def shifted(name: str) -> Callable:
    """A forgery of one number of the proof."""

    def forge(record: Record, random: np.random.Generator) -> Record:
        record = copy.deepcopy(record)
        record["proof"][name] += random.choice([-1e-6, 1e-6])
        return record

    return forge


def setting(name: str, value: Any) -> Callable:
    """A forgery of a setting of the problem."""

    def forge(record: Record, _: np.random.Generator) -> Record:
        record = copy.deepcopy(record)
        record["problem"][name] = value
        return record

    return forge


def larger(values, _):
    values += 1e-6


def smaller(values, _):
    values -= 1e-6


def entry(value: float) -> Callable:
    """An entry anywhere takes a value."""

    def change(values, random):
        values[anywhere(values, random)] = value

    return change


def twice(values, _):
    """The first entry in the second one's place, too."""
    values[1] = values[0]


def swapped(values, random):
    first, second = random.permutation(len(values))[:2]
    values[[first, second]] = values[[second, first]]
    if (values[first] == values[second]).all():
        values[first] = 1 - values[first]


def swapped_with_values(record, random):
    """The answers of two examples exchanged, and their values too."""
    labels, values = read(record["proof"]["labels"]), read(record["proof"]["values"])
    first, second = random.permutation(len(labels))[:2]
    labels[[first, second]], values[[first, second]] = labels[[second, first]], values[[second, first]]
    return replaced(replaced(record, "labels", labels), "values", values)


def worse_answer(record, random):
    """Another labelling as the answer, with its own, right value, and as the answer of the tree, too."""
    forged = changed("labels", flipped)(record, random)
    problem = problem_of(forged)
    labels = read(forged["proof"]["labels"])
    everyone = np.arange(len(labels))
    values = np.stack(
        [problem.losses(everyone, 2 * labels[:, k] - 1).mean(0) for k in range(labels.shape[1])], 1
    )
    return replaced(forged, "values", values if record["problem"]["objective"] == "hinge" else -values)


def cut(values, random):
    return values[: random.integers(len(values))]


def grown(values, random):
    return np.append(values, values[: random.integers(1, 3)])


def other_branch(values, random):
    inner = np.flatnonzero(values >= 0)
    node = inner[random.integers(len(inner))]
    values[node] = (values[node] + 1) % (values.max() + 1) if values.max() else -1


def closed_by(kind: int) -> Callable:
    """A leaf of another kind."""

    def change(values, random):
        leaves = np.flatnonzero((values < 0) & (values != kind))
        values[random.choice(leaves)] = kind

    return changed("tree", change)


def shortened(record, random):
    """A node with two leaves made one leaf, with the bound that it really has, which is not enough."""
    sign = 1 if record["problem"]["objective"] == "hinge" else -1
    worst = sign * read(record["proof"]["values"])[:, -1]
    nodes, bounds = read(record["proof"]["tree"]), read(record["proof"]["bounds"])
    spins, rows = problem_of(record).known, np.arange(len(read(record["problem"]["known"])))
    start, candidates = 0, []
    while len(rows):
        own = nodes[start : start + len(rows)]
        inner = np.flatnonzero(own >= 0)
        children = start + len(rows) + 2 * np.arange(len(inner))
        level = [(start + i, child, rows[i], spins[i]) for i, child in zip(inner, children, strict=True)]
        level = [entry for entry in level if (nodes[entry[1] : entry[1] + 2] < 0).all()]
        losses = [problem_of(record).losses(np.array([row]), part[None]).mean() for *_, row, part in level]
        candidates += [
            (*entry[:2], loss)
            for entry, loss in zip(level, losses, strict=True)
            if loss < worst[entry[2]] - 1e-9
        ]
        start += len(rows)
        labels, rows, spins = own[inner].repeat(2), rows[inner].repeat(2), spins[inner].repeat(2, 0)
        entry = np.arange(len(rows))
        spins[entry, labels] = 2 * (entry % 2) - 1
    if not candidates:  # every such node is closed by its bound, too
        return changed("tree", cut)(record, random)
    node, child, loss = candidates[random.integers(len(candidates))]
    is_leaf = nodes < 0
    lost = int(is_leaf[:child].sum())
    kept = int(is_leaf[:node].sum())
    bounds = np.delete(bounds, [lost, lost + 1])
    bounds = np.insert(bounds, kept, sign * loss)
    nodes[node] = -1
    return replaced(replaced(record, "tree", np.delete(nodes, [child, child + 1])), "bounds", bounds)


def freed(values, random):
    given = np.argwhere(values >= 0)
    values[tuple(given[random.integers(len(given))])] = -1


def reweighted(values, random):
    values[anywhere(values, random)] += random.choice([-1, 1]) * 10.0 ** random.integers(-6, 1)


# Of the proof: refused whatever the problem.
OF_PROOFS: dict[str, Callable] = {
    "a flipped label": changed("labels", flipped),
    "a worse answer": worse_answer,
    "answers swapped": changed("labels", swapped),
    "answers and values swapped": swapped_with_values,
    "a value off by 1e-6": changed("values", off),
    "a bound off by 1e-6": changed("bounds", off),
    "a tree cut short": changed("tree", cut),
    "a tree with more nodes": changed("tree", grown),
    "another branch": changed("tree", other_branch),
    "two leaves made one": shortened,
    "a leaf called an answer": closed_by(-3),
    "a leaf closed by a rule": closed_by(-2),
    "bounds cut short": changed("bounds", cut),
}
# Of the problem: the proof may be one of the other problem, too, which its name tells apart.
OF_PROBLEMS: dict[str, Callable] = {
    "a changed field": changed("unary", reweighted),
    "a changed coupling": changed("pair", reweighted),
    "a known label freed": changed("known", freed),
}
