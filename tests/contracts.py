"""What every inference routine promises, and the one table of routines that must keep it.

A new routine adds a row to ``ROUTINES``; its capabilities there choose which of the checks below apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
import torch
from strategies import flipped, permuted, random_directed_energy, random_known
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import Decoding, Marginals, ancestral, beam_search, branch_and_bound, exact

Result = Marginals | Decoding | Tensor
Call = Callable[[DirectedEnergy, Tensor | None, torch.Generator | None], Result]
Objective = Callable[[DirectedEnergy, Tensor], Tensor]


def log_prob(energy: DirectedEnergy, labels: Tensor) -> Tensor:
    """What ``decode`` maximises."""
    return energy.log_prob(labels)


def negative_hinge(energy: DirectedEnergy, labels: Tensor) -> Tensor:
    """What ``decode_hinge`` maximises, its results being of the opposite sign."""
    return -(1 - energy.local_margins(labels)).clamp(min=0).sum(-1)


@dataclass(frozen=True)
class Routine:
    """One row: a routine over directed energies and what it is capable of.

    Args:
        name: module and function, with arguments that matter.
        call: (energy, known, generator) → result; arguments that the routine lacks are ignored.
        decodes: for a decoder, the objective that it maximises.
        exact: every answer is proven.
        stochastic: draws from the generator.
        takes_known: accepts labels that are known.
        differentiable: gradients flow to the energy's tensors.
    """

    name: str
    call: Call
    decodes: Objective | None = None
    exact: bool = False
    stochastic: bool = False
    takes_known: bool = False
    differentiable: bool = False

    def __call__(
        self, energy: DirectedEnergy, known: Tensor | None = None, seed: int = 0
    ) -> dict[str, Tensor]:
        """The result's tensors by name."""
        generator = torch.Generator(energy.device).manual_seed(seed)
        return _tensors(self.call(energy, known, generator))


def _tensors(result: object, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(result, Tensor):
        return {prefix or "result": result}
    if not is_dataclass(result):
        return {}
    named: dict[str, Tensor] = {}
    for field in fields(result):
        named |= _tensors(getattr(result, field.name), f"{prefix}{'.' * bool(prefix)}{field.name}")
    return named


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
    Routine(
        "exact.decode",
        lambda energy, known, _: exact.decode(energy, known=known),
        decodes=log_prob,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "exact.decode_hinge",
        lambda energy, known, _: exact.decode_hinge(energy, known=known),
        decodes=negative_hinge,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "branch_and_bound.decode",
        lambda energy, known, _: branch_and_bound.decode(energy, known=known),
        decodes=log_prob,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "branch_and_bound.decode_hinge",
        lambda energy, known, _: branch_and_bound.decode_hinge(energy, known=known),
        decodes=negative_hinge,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "branch_and_bound.decode_hinge, cut off",
        lambda energy, known, _: branch_and_bound.decode_hinge(energy, cutoff=2.0, node_limit=9, known=known),
        decodes=negative_hinge,
        takes_known=True,
    ),
    Routine(
        "beam_search.decode, greedy",
        lambda energy, known, _: beam_search.decode(energy, known=known),
        decodes=log_prob,
        takes_known=True,
    ),
    Routine(
        "beam_search.decode_hinge, greedy",
        lambda energy, known, _: beam_search.decode_hinge(energy, known=known),
        decodes=negative_hinge,
        takes_known=True,
    ),
    Routine(
        "beam_search.decode_hinge, width 3",
        lambda energy, known, _: beam_search.decode_hinge(energy, width=3, known=known),
        decodes=negative_hinge,
        takes_known=True,
    ),
    Routine(
        "beam_search.decode, every labelling",
        lambda energy, known, _: beam_search.decode(energy, width=2**energy.num_labels, known=known),
        decodes=log_prob,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "ancestral.sample",
        lambda energy, _, generator: ancestral.sample(energy, 5, generator=generator),
        stochastic=True,
    ),
    Routine(
        "ancestral.marginals",
        lambda energy, _, generator: ancestral.marginals(energy, 500, generator=generator),
        stochastic=True,
    ),
)

# Every form of directed model, and each without and with known labels where the routine takes them.
ENERGIES = (
    {"num_labels": 5},
    {"num_labels": 5, "batch_size": 4, "per_example": True, "coupling": 3.0},
    {"num_labels": 6, "num_cliques": 4},
    {"num_labels": 4, "num_cliques": 2, "per_example": True, "coupling": 0.2},
    {"num_labels": 1, "batch_size": 2},
)


def cases(routine: Routine, dtype: torch.dtype = torch.float64) -> list[tuple[DirectedEnergy, Tensor | None]]:
    """What the checks run a routine on."""
    energies = [random_directed_energy(seed, **form, dtype=dtype) for seed, form in enumerate(ENERGIES)]
    drawn: list[tuple[DirectedEnergy, Tensor | None]] = [(energy, None) for energy in energies]
    if routine.takes_known:
        drawn += [(energy, random_known(seed, energy)) for seed, energy in enumerate(energies)]
    return drawn


def assert_same(came: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal names and, up to rounding, values."""
    assert came.keys() == expected.keys()
    for name, tensor in came.items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")


def over_labels(result: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The result with ``change`` made to every tensor that has a labels axis."""
    wide = {"labels", "standard_error"} if "labels" in result else {"result"}
    return {
        name: change(tensor) if name in wide and tensor.ndim > 1 else tensor
        for name, tensor in result.items()
    }


def check_shapes_and_dtypes(routine: Routine) -> None:
    for dtype in (torch.float32, torch.float64):
        for energy, known in cases(routine, dtype):
            batch, labels = energy.batch_size, energy.num_labels
            expected = {
                "labels": (torch.int64 if routine.decodes else dtype, (batch, labels)),
                "standard_error": (dtype, (batch, labels)),
                "log_partition": (dtype, (batch,)),
                "objective": (dtype, (batch,)),
                "bound": (dtype, (batch,)),
                "nodes": (torch.int64, (batch,)),
                "status.exact": (torch.bool, (batch,)),
                "status.converged": (torch.bool, (batch,)),
                "status.num_iters": (torch.int64, (batch,)),
                "status.residual": (dtype, (batch,)),
                "result": (torch.int64, (5, batch, labels)) if routine.stochastic else (dtype, (batch,)),
            }
            for name, tensor in routine(energy, known).items():
                assert (name, tensor.dtype, tuple(tensor.shape)) == (name, *expected[name])
                assert tensor.device == energy.device


def check_precision(routine: Routine) -> None:
    for (energy, known), (rounded, _) in zip(cases(routine), cases(routine, torch.float32), strict=True):
        fine, coarse = routine(energy, known), routine(rounded, known)
        for name, tensor in coarse.items():
            torch.testing.assert_close(tensor, fine[name].to(tensor.dtype), rtol=1e-4, atol=1e-5)


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
    energy = random_directed_energy(0, 8)
    first, other = routine(energy, seed=0), routine(energy, seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def check_arguments_are_left_alone(routine: Routine) -> None:
    for energy, known in cases(routine):
        tensors = {"known": known, **{name: getattr(energy, name) for name in _tensors(energy)}}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
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
        assert all(tensor.requires_grad == routine.differentiable for tensor in results.values())
        assert_same({name: tensor.detach() for name, tensor in results.items()}, routine(energy, known))


def check_renaming_labels_renames_results(routine: Routine) -> None:
    for seed, (energy, known) in enumerate(cases(routine)):
        order = torch.randperm(energy.num_labels, generator=torch.Generator().manual_seed(seed))
        renamed = routine(permuted(energy, order), None if known is None else known[:, order])
        assert_same(
            renamed, over_labels(routine(energy, known), lambda tensor, order=order: tensor[..., order])
        )


def check_flipping_labels_flips_results(routine: Routine) -> None:
    for seed, (energy, known) in enumerate(cases(routine)):
        flip = torch.randint(2, (energy.num_labels,), generator=torch.Generator().manual_seed(seed))
        flipped_known = None if known is None else torch.where(flip == 1, 1 - known, known)
        came = routine(flipped(energy, flip), flipped_known)
        expected = over_labels(
            routine(energy, known),
            lambda tensor, flip=flip: torch.where(flip == 1, 1 - tensor, tensor),
        )
        assert_same(came, expected)


def check_refuses_nan_and_infinity(routine: Routine) -> None:
    energy = random_directed_energy(0, 4, num_cliques=2)
    for name in ("unary", "parents", "clique_weight"):
        for bad in (torch.nan, torch.inf):
            tensor = getattr(energy, name).clone()
            tensor.view(-1)[-1] = bad
            with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
                routine(replace(energy, **{name: tensor}))


def check_refuses_a_parent_after_its_child(routine: Routine) -> None:
    energy = random_directed_energy(0, 4)
    with pytest.raises(ValueError, match=r"^parents: expected"):
        routine(replace(energy, parents=energy.parents.mT))


def check_known_labels_are_kept(routine: Routine) -> None:
    for energy, known in cases(routine):
        if known is None:
            continue
        result, given = routine(energy, known), ~known.isnan()
        if "labels" in result:
            torch.testing.assert_close(result["labels"][given].to(known.dtype), known[given])
        whole = known.nan_to_num().long()
        assert_same(routine(energy, whole), routine(energy, whole.to(energy.dtype)))


def check_nothing_known_is_all_missing(routine: Routine) -> None:
    for energy, _ in cases(routine):
        assert_same(routine(energy, torch.full_like(energy.unary, torch.nan)), routine(energy))


def check_refuses_strange_known(routine: Routine) -> None:
    energy = random_directed_energy(0, 4)
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
    oracle, sign = (exact.decode, 1) if routine.decodes is log_prob else (exact.decode_hinge, -1)
    for energy, known in cases(routine):
        found, best = routine(energy, known), sign * oracle(energy, known=known).objective
        objective, bound = sign * found["objective"], sign * found["bound"]
        torch.testing.assert_close(routine.decodes(energy, found["labels"]), objective)
        assert (objective <= best + 1e-6).all()
        assert (bound >= best - 1e-6).all()
        proven = found["status.exact"]
        torch.testing.assert_close(objective[proven], best[proven])
        torch.testing.assert_close(bound[proven], best[proven])
        torch.testing.assert_close(found["status.residual"], bound - objective)


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
    (check_renaming_labels_renames_results, lambda routine: True),
    (check_flipping_labels_flips_results, lambda routine: not routine.stochastic),
    (check_refuses_nan_and_infinity, lambda routine: True),
    (check_refuses_a_parent_after_its_child, lambda routine: True),
    (check_known_labels_are_kept, lambda routine: routine.takes_known),
    (check_nothing_known_is_all_missing, lambda routine: routine.takes_known),
    (check_refuses_strange_known, lambda routine: routine.takes_known),
    (check_decodings_are_worth_what_they_say, lambda routine: routine.decodes is not None),
    (check_every_answer_is_proven, lambda routine: routine.exact),
)
