"""What every inference routine over Boltzmann machines promises, and the one table of routines that keep it.

The counterpart of ``contracts`` for pairwise energies. A new routine adds a row to ``ROUTINES``; its
capabilities there choose which of the checks below apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from contracts import Routine, assert_same, over_labels
from pairwise_strategies import exchanged, random_pairwise_energy, renamed
from strategies import random_known
from torch import Tensor

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import (
    exact,
    gibbs,
    mean_field,
    pairwise_bp,
    tree_reweighted,
    undirected_branch_and_bound,
)

Case = tuple[PairwiseEnergy, Tensor | None]


def score(energy: PairwiseEnergy, labels: Tensor) -> Tensor:
    """What ``decode`` maximises."""
    return energy.score(labels)


def negative_hinge(energy: PairwiseEnergy, labels: Tensor) -> Tensor:
    """What ``decode_hinge`` maximises, its results being of the opposite sign."""
    return -(1 - energy.local_margins(labels)).clamp(min=0).sum(-1)


def marginals(module, name: str = "marginals", **settings) -> Routine:
    """A row for approximate marginals."""
    return Routine(
        f"{module.__name__.rpartition('.')[2]}.{name}",
        lambda energy, known, _: getattr(module, name)(energy, known=known, **settings),
        takes_known=True,
        differentiable=module is not mean_field and name == "marginals",
    )


def decoder(module, name: str, *, proves: bool = True, **settings) -> Routine:
    """A row for a decoder."""
    return Routine(
        ", ".join([f"{module.__name__.rpartition('.')[2]}.{name}", *settings]),
        lambda energy, known, _: getattr(module, name)(energy, known=known, **settings),
        decodes=score if name == "decode" else negative_hinge,
        exact=proves,
        takes_known=True,
    )


ROUTINES = (
    Routine(
        "exact.log_partition",
        lambda energy, known, _: exact.log_partition(energy, known=known),
        takes_known=True,
        differentiable=True,
    ),
    Routine(
        "exact.marginals",
        lambda energy, known, _: exact.marginals(energy, known=known),
        exact=True,
        takes_known=True,
    ),
    # Few iterations, before rounding has grown where they do not converge.
    marginals(pairwise_bp, num_iters=8, damping=0.2),
    marginals(pairwise_bp, "max_marginals", num_iters=8, damping=0.2),
    marginals(tree_reweighted, num_iters=8),
    marginals(tree_reweighted, "max_marginals", num_iters=8),
    marginals(mean_field),
    decoder(exact, "decode"),
    decoder(exact, "decode_hinge"),
    decoder(undirected_branch_and_bound, "decode"),
    decoder(undirected_branch_and_bound, "decode_hinge"),
    decoder(undirected_branch_and_bound, "decode", proves=False, node_limit=9),
    decoder(undirected_branch_and_bound, "decode_hinge", proves=False, node_limit=9),
    Routine(
        "gibbs.sample",
        lambda energy, known, generator: gibbs.sample(energy, 3, known=known, generator=generator),
        stochastic=True,
        takes_known=True,
    ),
)
# It updates labels in their order, so that renaming them changes the way on which it converges.
RENAMING_MATTERS = {"mean_field.marginals"}

# Each without and with known labels. Weak enough that no two labellings have the same hinge loss, none.
ENERGIES = (
    {"num_labels": 5, "coupling": 0.3},
    {"num_labels": 5, "coupling": 0.2, "batch_size": 4, "per_example": True},
    {"num_labels": 6, "coupling": 0.4, "density": 0.4},
    {"num_labels": 4, "coupling": 0.4, "density": 0.5, "per_example": True},
    {"num_labels": 1, "batch_size": 2},
)


def cases(routine: Routine, dtype: torch.dtype = torch.float64) -> list[Case]:
    """What the checks run a routine on."""
    energies = [random_pairwise_energy(seed, **form, dtype=dtype) for seed, form in enumerate(ENERGIES)]
    known = [random_known(seed, energy) for seed, energy in enumerate(energies)]
    return [*((energy, None) for energy in energies), *zip(energies, known, strict=True)]


def check_shapes_and_dtypes(routine: Routine) -> None:
    for dtype in (torch.float32, torch.float64):
        for energy, known in cases(routine, dtype):
            batch, labels = energy.batch_size, energy.num_labels
            expected = {
                "labels": (torch.int64 if routine.decodes else dtype, (batch, labels)),
                "log_partition": (dtype, (batch,)),
                "objective": (dtype, (batch,)),
                "bound": (dtype, (batch,)),
                "nodes": (torch.int64, (batch,)),
                "status.exact": (torch.bool, (batch,)),
                "status.converged": (torch.bool, (batch,)),
                "status.num_iters": (torch.int64, (batch,)),
                "status.residual": (dtype, (batch,)),
                "result": (torch.int64, (batch, labels)) if routine.stochastic else (dtype, (batch,)),
            }
            for name, tensor in routine(energy, known).items():
                assert (name, tensor.dtype, tuple(tensor.shape)) == (name, *expected[name])
                assert tensor.device == energy.device


def check_precision(routine: Routine) -> None:
    for (energy, known), (rounded, _) in zip(cases(routine), cases(routine, torch.float32), strict=True):
        fine, coarse = routine(energy, known), routine(rounded, known)
        for name in coarse.keys() - {"status.num_iters", "status.exact", "status.residual"}:
            torch.testing.assert_close(coarse[name], fine[name].to(coarse[name].dtype), rtol=1e-4, atol=1e-5)


def check_batch_of_one(routine: Routine) -> None:
    for energy, known in cases(routine):
        together = routine(energy, known)
        for example in range(energy.batch_size):
            row = slice(example, example + 1)
            alone = routine(energy.select(row), None if known is None else known[row])
            assert_same(alone, {name: tensor[row] for name, tensor in together.items()})


def check_determinism(routine: Routine) -> None:
    for energy, known in cases(routine):
        first, again = routine(energy, known), routine(energy, known)
        assert all(torch.equal(first[name], again[name]) for name in first)


def check_seeds_differ(routine: Routine) -> None:
    energy = random_pairwise_energy(0, 8)
    first, other = routine(energy, seed=0), routine(energy, seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def check_arguments_are_left_alone(routine: Routine) -> None:
    for energy, known in cases(routine):
        given = {name: getattr(energy, name) for name in ("unary", "pairwise", "constant")}
        if known is not None:
            given["known"] = known
        before = {name: (tensor.clone(), tensor._version) for name, tensor in given.items()}
        routine(energy, known)
        for name, tensor in given.items():
            content, version = before[name]
            assert tensor._version == version, name
            torch.testing.assert_close(tensor, content, rtol=0, atol=0, equal_nan=True)


def check_gradients(routine: Routine) -> None:
    for energy, known in cases(routine):
        learnt = replace(energy, unary=energy.unary.clone().requires_grad_())
        results = routine(learnt, known)
        for name, tensor in results.items():
            assert tensor.requires_grad == (routine.differentiable and name in {"result", "log_partition"})
        assert_same({name: tensor.detach() for name, tensor in results.items()}, routine(energy, known))


def check_runs_in_inference_mode(routine: Routine) -> None:
    with torch.inference_mode():
        made_here = [routine(energy, known) for energy, known in cases(routine)]
    for came, (energy, known) in zip(made_here, cases(routine), strict=True):
        assert_same(came, {name: tensor.detach() for name, tensor in routine(energy, known).items()})


def check_renaming_labels_renames_results(routine: Routine) -> None:
    for seed, (energy, known) in enumerate(cases(routine)):
        order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
        came = routine(renamed(energy, order), None if known is None else known[:, order])
        assert_same(came, over_labels(routine(energy, known), lambda tensor, order=order: tensor[..., order]))


def check_flipping_labels_flips_results(routine: Routine) -> None:
    for seed, (energy, known) in enumerate(cases(routine)):
        flip = torch.randint(2, (energy.num_labels,), generator=torch.Generator().manual_seed(seed)) == 1
        came = routine(
            exchanged(energy, flip), None if known is None else torch.where(flip, 1 - known, known)
        )
        expected = over_labels(
            routine(energy, known), lambda tensor, flip=flip: torch.where(flip, 1 - tensor, tensor)
        )
        assert_same(came, expected)


def check_refuses_what_is_no_energy(routine: Routine) -> None:
    energy = random_pairwise_energy(0, 4)
    for name in ("unary", "pairwise", "constant"):
        for bad in (torch.nan, torch.inf):
            tensor = getattr(energy, name).clone()
            tensor.view(-1)[-1] = bad
            with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
                routine(replace(energy, **{name: tensor}))
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        routine(replace(energy, pairwise=energy.pairwise.triu()))
    with pytest.raises(ValueError, match=r"^pairwise: expected a zero diagonal"):
        routine(replace(energy, pairwise=energy.pairwise + torch.eye(4, dtype=energy.dtype)))


def check_known_labels_are_kept(routine: Routine) -> None:
    for energy, known in cases(routine):
        if known is None:
            continue
        result, is_given = routine(energy, known), ~known.isnan()
        for name in result.keys() & {"labels", "result"}:
            if result[name].ndim > 1:
                torch.testing.assert_close(result[name][is_given].to(known.dtype), known[is_given])
        whole = known.nan_to_num().long()
        assert_same(routine(energy, whole), routine(energy, whole.to(energy.dtype)))


def check_nothing_known_is_all_missing(routine: Routine) -> None:
    for energy, _ in cases(routine):
        assert_same(routine(energy, torch.full_like(energy.unary, torch.nan)), routine(energy))


def check_refuses_strange_known(routine: Routine) -> None:
    energy = random_pairwise_energy(0, 4)
    for known in (
        torch.zeros(3, 5),
        torch.zeros(2, 4),
        torch.full((3, 4), 0.5),
        torch.full((3, 4), -1),
        torch.full((3, 4), torch.inf),
        torch.zeros(3, 4, device="meta"),
    ):
        with pytest.raises(ValueError, match=r"^known: expected"):
            routine(energy, known)


def check_decodings_are_worth_what_they_say(routine: Routine) -> None:
    assert routine.decodes is not None
    oracle, sign = (exact.decode, 1) if routine.decodes is score else (exact.decode_hinge, -1)
    for energy, known in cases(routine):
        found, best = routine(energy, known), sign * oracle(energy, known=known).objective
        objective, bound = sign * found["objective"], sign * found["bound"]
        torch.testing.assert_close(routine.decodes(energy, found["labels"]), objective)
        assert (objective <= best + 1e-6).all()
        assert (bound >= best - 1e-6).all()
        proven = found["status.exact"]
        torch.testing.assert_close(objective[proven], best[proven])
        torch.testing.assert_close(found["status.residual"], bound - objective, rtol=0, atol=1e-9)


def check_every_answer_is_proven(routine: Routine) -> None:
    for energy, known in cases(routine):
        result = routine(energy, known)
        assert result["status.exact"].all()
        assert result["status.converged"].all()
        assert (result["status.residual"] == 0).all()


# Each check, and the routines that it is for.
CHECKS: tuple[tuple[Callable[[Routine], None], Callable[[Routine], bool]], ...] = (
    (check_shapes_and_dtypes, lambda routine: True),
    (check_precision, lambda routine: not routine.stochastic),
    (check_batch_of_one, lambda routine: not routine.stochastic),
    (check_determinism, lambda routine: True),
    (check_seeds_differ, lambda routine: routine.stochastic),
    (check_arguments_are_left_alone, lambda routine: True),
    (check_gradients, lambda routine: True),
    (check_runs_in_inference_mode, lambda routine: True),
    (
        check_renaming_labels_renames_results,
        lambda routine: not routine.stochastic and routine.name not in RENAMING_MATTERS,
    ),
    (check_flipping_labels_flips_results, lambda routine: not routine.stochastic),
    (check_refuses_what_is_no_energy, lambda routine: True),
    (check_known_labels_are_kept, lambda routine: True),
    (check_nothing_known_is_all_missing, lambda routine: True),
    (check_refuses_strange_known, lambda routine: True),
    (check_decodings_are_worth_what_they_say, lambda routine: routine.decodes is not None),
    (check_every_answer_is_proven, lambda routine: routine.exact),
)
