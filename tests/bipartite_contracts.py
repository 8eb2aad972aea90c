"""What every inference routine over restricted Boltzmann machines promises, and the one table of them.

The counterpart of ``contracts`` for energies with two sides. A new routine adds a row to ``ROUTINES``; its
capabilities there choose which of the checks below apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from bipartite_strategies import permuted_units, random_bipartite_energy, random_known_visible
from contracts import Routine, assert_same
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference import annealed_importance, conditional_modes, exact, gibbs, matrix_bp, mean_field

Case = tuple[BipartiteEnergy, Tensor | None]


def joint_score(energy: BipartiteEnergy, visible: Tensor) -> Tensor:
    """What ``decode`` maximises, the hidden units at their best."""
    return energy.score(visible, energy.hidden_fields(visible) > 0)


def log_sum_score(energy: BipartiteEnergy, visible: Tensor) -> Tensor:
    """What ``marginal_map`` maximises."""
    return -energy.free_energy(visible)


def detached(energy: BipartiteEnergy) -> BipartiteEnergy:
    """The energy without a gradient."""
    return BipartiteEnergy(*(t.detach() for t in (energy.visible, energy.hidden, energy.coupling)))


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
        "exact.pairwise_marginals",
        lambda energy, known, _: exact.pairwise_marginals(energy, known=known),
        takes_known=True,
    ),
    Routine(
        "exact.decode",
        lambda energy, known, _: exact.decode(energy, known=known),
        decodes=joint_score,
        exact=True,
        takes_known=True,
    ),
    Routine(
        "exact.marginal_map",
        lambda energy, known, _: exact.marginal_map(energy, known=known),
        decodes=log_sum_score,
        exact=True,
        takes_known=True,
    ),
    # Few iterations, for the strong ones of these models are chaotic. Of the results of marginals one is
    # differentiable, and has a row of its own.
    Routine(
        "matrix_bp.marginals",
        lambda energy, known, _: matrix_bp.marginals(detached(energy), num_iters=4, tol=1e-3, known=known),
        takes_known=True,
    ),
    Routine(
        "matrix_bp.marginals, log partition",
        lambda energy, known, _: (
            matrix_bp.marginals(energy, num_iters=4, tol=1e-3, known=known).log_partition
        ),
        takes_known=True,
        differentiable=True,
    ),
    Routine(
        "matrix_bp.max_marginals",
        lambda energy, known, _: matrix_bp.max_marginals(energy, num_iters=4, tol=1e-3, known=known),
        takes_known=True,
    ),
    Routine(
        "matrix_bp.marginal_map",
        lambda energy, known, _: matrix_bp.marginal_map(energy, num_iters=4, tol=1e-3, known=known),
        decodes=log_sum_score,
        takes_known=True,
    ),
    Routine(
        "mean_field.marginals",
        lambda energy, known, _: mean_field.marginals(energy, known=known),
        takes_known=True,
    ),
    Routine(
        "conditional_modes.decode",
        lambda energy, known, _: conditional_modes.decode(energy, known=known),
        decodes=joint_score,
        takes_known=True,
    ),
    Routine(
        "gibbs.sample",
        lambda energy, known, generator: gibbs.sample(energy, 3, known=known, generator=generator),
        stochastic=True,
        takes_known=True,
    ),
    Routine(
        "annealed_importance.log_partition",
        lambda energy, known, generator: annealed_importance.log_partition(
            energy, num_chains=5, num_temperatures=10, known=known, generator=generator
        ),
        stochastic=True,
        takes_known=True,
    ),
    # It visits the units in their order, so that renaming them may end in another mode.
    Routine(
        "conditional_modes.marginal_map",
        lambda energy, known, _: conditional_modes.marginal_map(energy, known=known),
        decodes=log_sum_score,
        takes_known=True,
    ),
)
RENAMING_MATTERS = {"conditional_modes.marginal_map"}
# Its residual is a change of messages, not what is left to prove.
RESIDUAL_OF_MESSAGES = {"matrix_bp.marginal_map"}

# Each without and with known units where the routine takes them.
ENERGIES = (
    {"num_visible": 5, "num_hidden": 4},
    {"num_visible": 3, "num_hidden": 6, "batch_size": 4, "coupling": 3.0},
    {"num_visible": 6, "num_hidden": 2, "coupling": 0.2},
    {"num_visible": 1, "num_hidden": 1, "batch_size": 2},
)


def cases(routine: Routine, dtype: torch.dtype = torch.float64) -> list[Case]:
    """What the checks run a routine on."""
    energies = [random_bipartite_energy(seed, **form, dtype=dtype) for seed, form in enumerate(ENERGIES)]
    drawn: list[Case] = [(energy, None) for energy in energies]
    if routine.takes_known:
        drawn += [(energy, random_known_visible(seed, energy)) for seed, energy in enumerate(energies)]
    return drawn


def check_shapes_and_dtypes(routine: Routine) -> None:
    for dtype in (torch.float32, torch.float64):
        for energy, known in cases(routine, dtype):
            batch = energy.batch_size
            units = torch.int64 if routine.stochastic else dtype
            pairwise = routine.name == "exact.pairwise_marginals"
            expected = {
                "visible": (units, (batch, energy.num_visible)),
                "hidden": (torch.int64 if routine.decodes else units, (batch, energy.num_hidden)),
                "labels": (torch.int64, (batch, energy.num_visible)),
                "log_partition": (dtype, (batch,)),
                "standard_error": (dtype, (batch,)),
                "effective_size": (dtype, (batch,)),
                "objective": (dtype, (batch,)),
                "bound": (dtype, (batch,)),
                "status.exact": (torch.bool, (batch,)),
                "status.converged": (torch.bool, (batch,)),
                "status.num_iters": (torch.int64, (batch,)),
                "status.residual": (dtype, (batch,)),
                "result": (dtype, (batch, energy.num_visible, energy.num_hidden) if pairwise else (batch,)),
            }
            for name, tensor in routine(energy, known).items():
                assert (name, tensor.dtype, tuple(tensor.shape)) == (name, *expected[name])
                assert tensor.device == energy.device


def check_precision(routine: Routine) -> None:
    for (energy, known), (rounded, _) in zip(cases(routine), cases(routine, torch.float32), strict=True):
        fine, coarse = routine(energy, known), routine(rounded, known)
        for name in coarse.keys() - {"status.num_iters"}:
            torch.testing.assert_close(coarse[name], fine[name].to(coarse[name].dtype), rtol=1e-4, atol=1e-5)


def check_batch_of_one(routine: Routine) -> None:
    for energy, known in cases(routine):
        together = routine(energy, known)
        for example in range(energy.batch_size):
            row = slice(example, example + 1)
            alone = routine(energy.select(row), None if known is None else known[row])
            expected = {name: tensor[row] for name, tensor in together.items()}
            if routine.exact:
                # The most that any example leaves free decides which side is enumerated.
                del alone["status.num_iters"], expected["status.num_iters"]
            assert_same(alone, expected)


def check_determinism(routine: Routine) -> None:
    for energy, known in cases(routine):
        first, again = routine(energy, known), routine(energy, known)
        assert all(torch.equal(first[name], again[name]) for name in first)


def check_seeds_differ(routine: Routine) -> None:
    energy = random_bipartite_energy(0, 8, 8)
    first, other = routine(energy, seed=0), routine(energy, seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def check_arguments_are_left_alone(routine: Routine) -> None:
    for energy, known in cases(routine):
        given = {name: getattr(energy, name) for name in ("visible", "hidden", "coupling")}
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
        learnt = replace(energy, coupling=energy.coupling.clone().requires_grad_())
        results = routine(learnt, known)
        assert all(tensor.requires_grad == routine.differentiable for tensor in results.values())
        assert_same({name: tensor.detach() for name, tensor in results.items()}, routine(energy, known))


def check_runs_in_inference_mode(routine: Routine) -> None:
    with torch.inference_mode():
        made_here = [routine(energy, known) for energy, known in cases(routine)]
    for came, (energy, known) in zip(made_here, cases(routine), strict=True):
        expected = routine(energy, known)
        assert_same(came, {name: tensor.detach() for name, tensor in expected.items()})


def check_renaming_units_renames_results(routine: Routine) -> None:
    for seed, (energy, known) in enumerate(cases(routine)):
        generator = torch.Generator().manual_seed(seed)
        visible = torch.randperm(energy.num_visible, generator=generator)
        hidden = torch.randperm(energy.num_hidden, generator=generator)
        renamed = routine(
            permuted_units(energy, visible, hidden), None if known is None else known[:, visible]
        )
        change: dict[str, Callable[[Tensor], Tensor]] = {
            "labels": lambda tensor, visible=visible: tensor[:, visible],
            "visible": lambda tensor, visible=visible: tensor[:, visible],
            "hidden": lambda tensor, hidden=hidden: tensor[:, hidden],
            "result": lambda tensor, visible=visible, hidden=hidden: (
                tensor[:, visible][:, :, hidden] if tensor.ndim == 3 else tensor
            ),
        }
        expected = routine(energy, known)
        assert_same(
            renamed,
            {name: change[name](tensor) if name in change else tensor for name, tensor in expected.items()},
        )


def check_refuses_nan_and_infinity(routine: Routine) -> None:
    energy = random_bipartite_energy(0, 4, 3)
    for name in ("visible", "hidden", "coupling"):
        for bad in (torch.nan, torch.inf):
            tensor = getattr(energy, name).clone()
            tensor.view(-1)[-1] = bad
            with pytest.raises(ValueError, match=f"^{name}: expected finite values"):
                routine(replace(energy, **{name: tensor}))


def check_known_units_are_kept(routine: Routine) -> None:
    for energy, known in cases(routine):
        if known is None:
            continue
        result, given = routine(energy, known), ~known.isnan()
        for name in result.keys() & {"labels", "visible"}:
            torch.testing.assert_close(result[name][given].to(known.dtype), known[given])
        whole = known.nan_to_num().long()
        assert_same(routine(energy, whole), routine(energy, whole.to(energy.dtype)))


def check_nothing_known_is_all_missing(routine: Routine) -> None:
    for energy, _ in cases(routine):
        assert_same(routine(energy, torch.full_like(energy.visible, torch.nan)), routine(energy))


def check_refuses_strange_known(routine: Routine) -> None:
    energy = random_bipartite_energy(0, 4, 5)
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
    oracle = exact.decode if routine.decodes is joint_score else exact.marginal_map
    for energy, known in cases(routine):
        found, best = routine(energy, known), oracle(energy, known=known).objective
        torch.testing.assert_close(routine.decodes(energy, found["labels"]), found["objective"])
        assert (found["objective"] <= best + 1e-6).all()
        assert (found["bound"] >= best - 1e-6).all()
        torch.testing.assert_close(found["bound"][found["status.exact"]], best[found["status.exact"]])
        if routine.name not in RESIDUAL_OF_MESSAGES:
            torch.testing.assert_close(found["status.residual"], found["bound"] - found["objective"])


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
        check_renaming_units_renames_results,
        lambda routine: not routine.stochastic and routine.name not in RENAMING_MATTERS,
    ),
    (check_refuses_nan_and_infinity, lambda routine: True),
    (check_known_units_are_kept, lambda routine: routine.takes_known),
    (check_nothing_known_is_all_missing, lambda routine: routine.takes_known),
    (check_refuses_strange_known, lambda routine: routine.takes_known),
    (check_decodings_are_worth_what_they_say, lambda routine: routine.decodes is not None),
    (check_every_answer_is_proven, lambda routine: routine.exact),
)
