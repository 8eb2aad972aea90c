"""Public functions of inference; each looks up its routine in the table of routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_not_negative
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.factor import FactorEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.energies.tree import TreeEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.routes.table import Matched, NodeLimit, Query, answer
from lmbm_torch.shapes import Float, Int, Known

AnyEnergy = (
    PairwiseEnergy | CliqueEnergy | DirectedEnergy | BipartiteEnergy | ChainEnergy | TreeEnergy | FactorEnergy
)
MEASURES = ("exact_match", "hamming", "f1", "jaccard")


def decode(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: NodeLimit = "auto",
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmax_y P(y), the MAP labelling, with an optimality certificate; hidden units are summed out.

    The answer is exact for chains, for trees, and for models that are enumerated or have a junction tree of
    small width. Searches prove their answers if they end within ``node_limit``. For a restricted Boltzmann
    machine with many labels the bound may stay above the objective. ``status`` says which case holds.

    Args:
        energy: an energy of any kind in :mod:`lmbm_torch.energies`. A Boltzmann machine with cliques of three
            or more labels needs at most 22 labels, a graph close to a tree, or the solver HiGHS. A subclass
            of ``BaseEnergy`` from another library needs at most 22 free labels. A restricted energy is
            decoded under its own rules.
        known: {0, 1, NaN}, NaN for a free label; the answer keeps the known labels. None for chains and
            trees.
        top_k: the number of labellings to return, best first. Only directed models, chains and Boltzmann
            machines can return several (with cliques of three or more labels: of at most 22 labels).
        node_limit: the number of nodes after which an example's search ends; "auto": the default for this
            kind of energy (:data:`~lmbm_torch.inference.common.limits.LIMITS`); None: no limit, with the
            semidefinite search for dense Boltzmann machines of many labels. Only searches use the limit.
        constraints: rules that the labellings must obey; see
            :mod:`lmbm_torch.inference.under_rules.constrained`.

    Raises:
        TypeError: no routine decodes this kind of energy.
        ValueError: the energy is not finite or has too many labels; ``known`` has another shape than (batch,
            labels), values besides 0, 1 and NaN, or is not supported; ``top_k`` is below 1, above the
            number of an example's labellings, or not supported; the node limit is no positive integer.

    Examples:
        >>> from lmbm_torch.inference import decode
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> pairwise = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> decode(PairwiseEnergy(torch.tensor([[0.5, -0.2]]), pairwise)).labels
        tensor([[1, 1]])
    """
    _check_limits(top_k, node_limit)
    limits: dict[str, Any] = {"known": known, "top_k": top_k, "node_limit": node_limit}
    return answer(Query(quantity="decode", energy=energy, constraints=constraints, **limits))


def decode_hinge(
    energy: DirectedEnergy | PairwiseEnergy | CliqueEnergy | FactorEnergy,
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    node_limit: NodeLimit = "auto",
    constraints: Constraints | None = None,
) -> Decoding:
    """Return argmin_y Σ_i [margin − m_i]_+, the labelling of least hinge loss, with the certificate.

    Args:
        energy: a directed model or a Boltzmann machine; at most 22 labels with cliques of three or more.
        margin: γ > 0, in units of the local fields.
        known: {0, 1, NaN}, NaN for a free label; hinge losses of known labels are part of the sum.
        top_k: the number of labellings to return, best first; a Boltzmann machine with several needs at most
            22 labels.
        node_limit, constraints: see :func:`decode`.

    Raises:
        TypeError: no routine finds the least hinge loss of this kind of energy.
        ValueError: see :func:`decode`; the margin is not a finite number above 0.

    Examples:
        >>> from lmbm_torch.inference import decode_hinge
        >>> import torch
        >>> from lmbm_torch.energies import DirectedEnergy
        >>> parents = torch.tensor([[0.0, 0.0], [1.5, 0.0]])
        >>> energy = DirectedEnergy(torch.tensor([[0.5, -0.2]]), parents, torch.arange(2))
        >>> decode_hinge(energy).objective
        tensor([0.5000])
    """
    _check_limits(top_k, node_limit)
    limits: dict[str, Any] = {"known": known, "top_k": top_k, "node_limit": node_limit, "margin": margin}
    return answer(Query(quantity="decode_hinge", energy=energy, constraints=constraints, **limits))


def decode_expected(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    measure: str,
    *,
    known: Known | None = None,
    constraints: Constraints | None = None,
    top_k: int = 1,
    tolerance: float = 0.01,
    max_labellings: int | None = None,
    max_candidates: int = LIMITS.candidates,
    node_limit: NodeLimit = None,
    num_samples: int = LIMITS.samples,
    generator: torch.Generator | None = None,
) -> Decoding:
    """Return the labelling of largest expected measure under a mixture of directed models of equal weight.

    Args:
        energies: the members (models) of the mixture, of the same shape; one model is a mixture.
        measure: ``"exact_match"`` (the most probable labelling), ``"hamming"``, ``"f1"`` or ``"jaccard"``; F1
            and Jaccard need labels of two values.
        known: {0, 1, NaN}, NaN for a free label.
        constraints: rules that the labelling must obey; the distribution is then conditional on the rules.
        top_k: the number of labellings to return, best first; above 1 only for the exact match without rules.
        tolerance: the largest regret (under rules, the largest probability of labellings left out) at which
            the enumeration of likely labellings ends.
        max_labellings: the largest number of likely labellings for each member and instance; None for 10,000,
            and fewer for more than 100 labels.
        max_candidates, node_limit: limits of the search for the exact match, see
            :func:`lmbm_torch.inference.search.mixture.decode`.
        num_samples: the number of draws for each instance whose likely labellings leave out much probability.
        generator: the source of randomness, on the energies' device; by default torch's own.

    Returns:
        A :class:`Decoding` whose objective is the expected measure; for the exact match, the log-probability.

    Raises:
        TypeError: a member is no directed or sequential energy.
        ValueError: there are no members, or members differ in shape, dtype or device; ``measure`` is unknown;
            ``known`` has another shape than (batch, labels), or values except 0, 1 and NaN; ``tolerance`` is
            negative; a limit is no positive integer; the rules are over another number of labels, or
            contradict ``known``.

    Examples:
        >>> from lmbm_torch.inference import decode_expected
        >>> import torch
        >>> from lmbm_torch.energies import DirectedEnergy
        >>> parents = torch.tensor([[0.0, 0.0], [1.5, 0.0]])
        >>> energy = DirectedEnergy(torch.tensor([[0.1, -0.2]]), parents, torch.arange(2))
        >>> decode_expected([energy], "f1").labels
        tensor([[1, 1]])
    """
    from lmbm_torch.inference.search.mixture import check_members
    from lmbm_torch.inference.search.most_probable import affordable_labellings

    if measure not in MEASURES:
        raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
    check_members(energies)
    _check_limits(top_k, node_limit)
    check_not_negative("tolerance", tolerance)
    check_count("num_samples", num_samples)
    if max_labellings is None:
        max_labellings = affordable_labellings(energies[0].num_labels)
    check_count("max_labellings", max_labellings)
    given: dict[str, Any] = {"known": known, "constraints": constraints, "top_k": top_k, "measure": measure}
    given |= {"tolerance": tolerance, "max_labellings": max_labellings, "max_candidates": max_candidates}
    given |= {"node_limit": node_limit, "num_samples": num_samples, "generator": generator}
    return answer(Query(quantity="decode_expected", energy=energies, **given))


def marginals(
    energy: AnyEnergy | SequentialEnergy,
    *,
    known: Known | None = None,
    matched: Matched | None = None,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
) -> Any:
    """Return P(y_i = 1), or P(y_t = s) for labels of several states: exact if affordable, else approximate.

    ``method`` names the routine in words. ``status.exact`` says for which examples the marginals and
    ``log_partition`` are exact. Otherwise, ``log_partition`` is a bound or approximate, 0 for a directed
    model.

    Args:
        energy: see :func:`decode`, also for ``known``. A directed model with too many labels for enumeration
            and with a graph that is not close to a tree takes no known labels.
        matched: the inference that a restricted Boltzmann machine was trained with, used if enumeration would
            take too long; by default belief propagation.
        generator: the source of randomness for a directed model of many labels, whose marginals are sampled.
        constraints: rules that the labellings obey; needs at most 22 free labels or a sparse model, see
            :func:`log_partition`.

    Returns:
        ``Marginals``; for a restricted Boltzmann machine ``BipartiteMarginals``, for chains, trees and
        sequential energies ``StateMarginals``.

    Raises:
        TypeError: no routine gives marginals of this kind of energy.
        ValueError: see :func:`decode`.

    Examples:
        >>> from lmbm_torch.inference import marginals
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> pairwise = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> marginals(PairwiseEnergy(torch.tensor([[0.5, -0.2]]), pairwise)).labels
        tensor([[0.6675, 0.5831]])
    """
    given: dict[str, Any] = {"known": known, "matched": matched, "generator": generator}
    return answer(Query(quantity="marginals", energy=energy, constraints=constraints, **given))


def log_partition(
    energy: AnyEnergy, *, known: Known | None = None, constraints: Constraints | None = None
) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)) exactly, over the labellings that agree with ``known``; differentiable.

    Args:
        energy: a chain; a tree; a graph of tables; an energy of at most 22 free labels (for a restricted
            Boltzmann machine, at most 22 units on the smaller side); a Boltzmann machine or directed model
            with a graph close to a tree; or a directed model without known labels, whose log partition is 0.
        known: see :func:`decode`. For a directed model the result is log P(known).
        constraints: rules that the labellings obey; needs at most 22 free labels, or a sparse Boltzmann
            machine or directed model. For a directed model the result is the log-probability that the rules
            and the known labels hold: log P(y | allowed) = log P(y) − log P(allowed).

    Raises:
        TypeError: no routine sums this kind of energy; under rules, labels have more than two values.
        ValueError: see :func:`decode`; no exact routine takes so large an energy. For Boltzmann machines and
            graphs of tables :func:`lmbm_torch.inference.messages.mini_buckets.bounds` returns two bounds.

    Examples:
        >>> from lmbm_torch.inference import log_partition
        >>> import torch
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> pairwise = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> log_partition(PairwiseEnergy(torch.tensor([[0.5, -0.2]]), pairwise))
        tensor([1.8881])
    """
    return answer(Query(quantity="log_partition", energy=energy, known=known, constraints=constraints))


def sample(
    energy: PairwiseEnergy
    | CliqueEnergy
    | DirectedEnergy
    | BipartiteEnergy
    | ChainEnergy
    | SequentialEnergy
    | FactorEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y), given the ``known`` labels and the rules.

    Args:
        energy: see :func:`log_partition`.
        num_samples: the number of draws for each example.
        known: see :func:`decode`; None for a sequential energy.
        generator: the source of randomness, on the energy's device; by default torch's own.
        constraints: see :func:`log_partition`.

    Raises:
        TypeError: no routine samples this kind of energy; under rules, labels have more than two values.
        ValueError: see :func:`log_partition`; ``num_samples`` is below 1. For larger models
            :mod:`lmbm_torch.inference.sampling.gibbs` gives dependent draws.

    Examples:
        >>> from lmbm_torch.inference import sample
        >>> import torch
        >>> from lmbm_torch.energies import DirectedEnergy
        >>> parents = torch.tensor([[0.0, 0.0], [1.5, 0.0]])
        >>> energy = DirectedEnergy(torch.tensor([[9.0, -0.2]]), parents, torch.arange(2))
        >>> sample(energy, 3, generator=torch.Generator().manual_seed(0))[..., 0].mT
        tensor([[1, 1, 1]])
    """
    check_count("num_samples", num_samples)
    given: dict[str, Any] = {"known": known, "num_samples": num_samples, "generator": generator}
    return answer(Query(quantity="sample", energy=energy, constraints=constraints, **given))


def _check_limits(top_k: int, node_limit: NodeLimit) -> None:
    check_count("top_k", top_k)
    if node_limit is not None and node_limit != "auto":
        check_count("node_limit", node_limit)
