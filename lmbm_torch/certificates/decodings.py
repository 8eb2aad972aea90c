"""Certificates of decodings: the problem, the decoded labellings, and a search tree that proves optimality.

The proof is built after the decoding, when the optimum is already known. Therefore decoders and results do
not depend on certificates, and the exact result of any decoder can be proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.certificates.dense import BySemidefiniteBounds
from lmbm_torch.certificates.lines import array, double, field, joined, line, name
from lmbm_torch.certificates.losses import CliqueScoreLosses, HingeLosses, LogLosses, Losses, PairScoreLosses
from lmbm_torch.certificates.trees import Choose, Claim, TooManyNodes, Tree, by_bounds, in_order, prove
from lmbm_torch.checks import check_count, check_known, check_positive, check_shape
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.energies.base import to_spins
from lmbm_torch.files import Mode, replacing
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.shapes import Known

__all__ = ["digest", "write"]

# Largest number of search-tree nodes in all proofs of one line of the file, which limits memory.
NODE_LIMIT = 10_000_000
# Largest number of examples in one line of the file.
BLOCK = 1024
# If proofs need more nodes than this for each example on average, they use semidefinite bounds.
FEW_NODES = 2_000

AnEnergy = DirectedEnergy | PairwiseEnergy | CliqueEnergy


@torch.no_grad()
def write(
    decoding: Decoding,
    path: str | PathLike,
    energy: AnEnergy,
    *,
    margin: float | None = None,
    known: Known | None = None,
    constraints: Constraints | None = None,
    node_limit: int = NODE_LIMIT,
    mode: Mode = "x",
) -> str:
    """Prove that a decoding is optimal; write the problem, the labellings and the proof as JSON lines.

    Args:
        decoding: a decoding by any routine, with one or several labellings for each example; ``status.exact``
            must be true for every example.
        energy, known, constraints: the arguments of the decoder.
        margin: the margin γ of ``decode_hinge``; None for the MAP labelling of ``decode``.
        node_limit: largest number of search-tree nodes in the proofs of 1,024 examples together.
        mode: "x" to refuse an existing file, "w" to replace the file.

    Returns:
        The name of the problem, see :func:`digest`: by the name, a reader checks that the certificate is
        about the problem that the reader knows.

    Raises:
        FileExistsError: the file exists, in mode "x".
        TypeError: the energy is of another kind.
        ValueError: labellings are not exact, or do not fit the other arguments; a better labelling exists;
            the margin is not above 0; or proofs need more nodes than ``node_limit``.

    Examples:
        >>> import tempfile, torch
        >>> from lmbm_torch import PairwiseEnergy, certificates, decode
        >>> energy = PairwiseEnergy(torch.tensor([[1.0, -0.5]]), torch.zeros(2, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     name = certificates.write(decode(energy), f"{folder}/proof.jsonl", energy)
        >>> name == certificates.digest(energy)
        True
    """
    check_count("node_limit", node_limit)
    _check(decoding, energy, margin, known, constraints)
    names = []
    with replacing(path, mode) as stream:
        for rows in _blocks(energy.batch_size):
            problem = _problem(energy, margin, known, constraints, rows)
            names.append(name(problem))
            answers = decoding.labels[rows].reshape(len(rows), -1, energy.num_labels)
            proof = _proof(energy.select(rows), margin, problem, constraints, answers, node_limit)
            stream.write(line("decoding", problem, proof))
    return joined(names)


@torch.no_grad()
def digest(
    energy: AnEnergy,
    *,
    margin: float | None = None,
    known: Known | None = None,
    constraints: Constraints | None = None,
) -> str:
    """Return the name of a decoding problem, a SHA-256 hash; certificates of the problem have the same name.

    Args:
        energy, margin, known, constraints: see :func:`write`.

    Raises:
        TypeError, ValueError: see :func:`write`.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy, certificates
        >>> len(certificates.digest(PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))))
        64
    """
    _check(None, energy, margin, known, constraints)
    blocks = _blocks(energy.batch_size)
    return joined([name(_problem(energy, margin, known, constraints, rows)) for rows in blocks])


def _check(
    decoding: Decoding | None,
    energy: Any,
    margin: float | None,
    known: Tensor | None,
    constraints: Constraints | None,
) -> None:
    if not isinstance(energy, AnEnergy):
        raise TypeError(
            f"energy: expected a DirectedEnergy, PairwiseEnergy or CliqueEnergy, got {type(energy).__name__}"
        )
    energy.check_values()
    if margin is not None:
        check_positive("margin", margin)
    check_known(known, energy.device, energy.batch_size, energy.num_labels)
    if constraints is not None and constraints.num_labels != energy.num_labels:
        raise ValueError(
            f"constraints: expected rules over {energy.num_labels} labels, got {constraints.num_labels}"
        )
    if decoding is None:
        return
    several = (None,) if decoding.labels.ndim == 3 else ()
    check_shape("decoding.labels", decoding.labels, energy.batch_size, *several, energy.num_labels)
    gaps = int((~decoding.status.exact).sum())
    if gaps:
        raise ValueError(f"decoding: expected status.exact for every example, got {gaps} unproven examples")


def _blocks(batch: int) -> Iterator[Tensor]:
    yield from torch.arange(batch, device="cpu").split(BLOCK)


def _problem(
    energy: Any, margin: float | None, known: Tensor | None, constraints: Constraints | None, rows: Tensor
) -> dict[str, Any]:
    """Describe the problem of some examples as fields of a certificate."""
    none = torch.full((len(rows), energy.num_labels), -1, device="cpu")
    given = none if known is None else known[rows].nan_to_num(-1)
    likely = "log_prob" if isinstance(energy, DirectedEnergy) else "score"
    problem = {
        "energy": _energy(energy.select(rows)),
        "objective": likely if margin is None else "hinge",
        "known": field(given, np.int8),
    }
    if margin is not None:
        problem["margin"] = float(margin)
    if constraints is not None:
        problem["rules"] = {"matrix": field(constraints.matrix), "bounds": field(constraints.bounds)}
    return problem


def _energy(energy: Any) -> dict[str, Any]:
    """Return an energy's kind and tensors as fields of a certificate."""
    match energy:
        case PairwiseEnergy():
            tables = {"unary": energy.unary, "pair": energy.pairwise, "constant": energy.constant}
            return {"kind": "pairwise"} | {name: field(table) for name, table in tables.items()}
        case CliqueEnergy():
            constant = energy.constant.expand(energy.batch_size)
            cliques = [list(clique) for clique in energy.cliques]
            return {
                "kind": "clique",
                "cliques": cliques,
                "weight": field(energy.weight),
                "constant": field(constant),
            }
        case _:
            fields = {
                "kind": "directed",
                "unary": field(energy.unary),
                "pair": field(energy.parents),
                "ordering": energy.ordering.tolist(),
            }
            if energy.clique_weight is None:
                return fields
            cliques = [list(clique) for clique in energy.cliques]
            return fields | {"cliques": cliques, "weight": field(energy.clique_weight)}


def _proof(
    energy: Any,
    margin: float | None,
    problem: dict[str, Any],
    constraints: Constraints | None,
    answers: Tensor,
    node_limit: int,
) -> dict:
    """Prove one block of examples; return labellings, objective values and proof trees as JSON fields."""
    losses = _losses(energy, margin)
    known = array(problem["known"]).astype(np.float64)
    rules = problem.get("rules")
    claim = Claim(
        known=np.where(known < 0, 0, 2 * known - 1),
        answers=to_spins(answers.cpu(), torch.float64).numpy(),
        matrix=np.zeros((0, energy.num_labels)) if rules is None else array(rules["matrix"]),
        bounds=np.zeros(0) if rules is None else array(rules["bounds"]),
    )
    directed = isinstance(energy, DirectedEnergy)
    choose = in_order(energy.ordering.cpu().numpy()) if directed else by_bounds
    tree, multipliers = _tree(losses, claim, constraints, choose, node_limit)
    rows = np.arange(len(answers))
    values = np.stack([losses.of(rows, claim.answers[:, k])[1] for k in range(answers.shape[1])], 1)
    sign = 1 if margin is not None else -1
    proof: dict[str, Any] = {
        "labels": field(answers, np.int8),
        "values": field(sign * values),
        "tree": field(tree.nodes, np.int16),
        "bounds": field(sign * tree.bounds),
    }
    if isinstance(losses, PairScoreLosses):
        proof["messages"] = field(losses.messages)
    if multipliers:
        proof["semidefinite"] = multipliers
    return proof


def _tree(
    losses: Losses, claim: Claim, constraints: Constraints | None, choose: Choose, node_limit: int
) -> tuple[Tree, list[dict[str, Any]]]:
    """Build the proof trees of a block, and the multipliers of semidefinite bounds if these are used."""
    if choose is not by_bounds or not isinstance(losses, PairScoreLosses):
        return prove(losses, claim, choose, node_limit), []
    try:
        return prove(losses, claim, choose, min(node_limit, FEW_NODES * len(claim.known))), []
    except TooManyNodes:
        dense = BySemidefiniteBounds(claim, constraints)
        return prove(losses, claim, dense, node_limit), dense.proof()


def _losses(energy: Any, margin: float | None) -> Losses:
    """Convert an energy to the loss that the proof bounds: hinge loss, log loss or negative score."""
    labels, members = energy.num_labels, getattr(energy, "cliques", ())
    place, constant, weight = list(range(labels)), getattr(energy, "constant", None), None
    match energy:
        case DirectedEnergy():
            place, unary, pair, weight = (
                energy.positions.tolist(),
                energy.unary,
                energy.parents,
                energy.clique_weight,
            )
        case PairwiseEnergy():
            unary, pair = energy.unary, energy.pairwise
        case _:
            unary, pair = (
                torch.zeros(energy.batch_size, labels, device="cpu"),
                torch.zeros(labels, labels, device="cpu"),
            )
            weight = energy.weight
    arrays: dict[str, Any] = {
        "unary": double(unary),
        "pair": double(pair).reshape(-1, labels, labels),
        "cliques": members,
        "weight": np.zeros((1, 0)) if weight is None else np.atleast_2d(double(weight)),
    }
    owners = tuple((max(clique, key=lambda label: place[label]),) for clique in members)
    if margin is not None:
        each = members if isinstance(energy, CliqueEnergy) else owners
        return HingeLosses(**arrays, owners=each, margin=float(margin))
    if constant is None:
        return LogLosses(**arrays, owners=owners)
    constant = double(constant.expand(energy.batch_size))
    if isinstance(energy, CliqueEnergy):
        return CliqueScoreLosses(**arrays, owners=owners, constant=constant)
    return PairScoreLosses(**arrays, constant=constant, messages=_messages(arrays["unary"], arrays["pair"]))


def _messages(unary: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """Compute roof duality's messages for each example, with all labels free."""
    least, free = 1e-12 * np.abs(unary).sum(1), np.zeros(unary.shape[1])
    messages = kernels("search.roof_duality").messages
    each = [messages(fields, pair[row % len(pair)], free, least[row]) for row, fields in enumerate(unary)]
    return np.stack(each)
