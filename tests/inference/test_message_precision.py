"""Each backend and precision of matrix belief propagation against the reference in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.messages import matrix_bp

VISIBLE, HIDDEN = 30, 20
# Of a rounded number of float32, relative to itself.
ROUNDING = 2.0**-24
ROUTINES = {
    "marginals": matrix_bp.marginals,
    "damped": partial(matrix_bp.marginals, damping=0.2),
    "max_marginals": matrix_bp.max_marginals,
    "marginal_map": matrix_bp.marginal_map,
    "moments": matrix_bp.moments,
}


def energy(dtype: torch.dtype = torch.float64, scale: float = 0.15) -> BipartiteEnergy:
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    drawn = BipartiteEnergy(draw(4, VISIBLE), draw(4, HIDDEN), scale * draw(VISIBLE, HIDDEN))
    return drawn.to(dtype)


def tensors(answer) -> dict[str, torch.Tensor]:
    """What was computed, by name."""
    if isinstance(answer, torch.Tensor):
        return {"pairs": answer}
    if isinstance(answer, tuple):
        return tensors(answer[0]) | tensors(answer[1])
    decoded = isinstance(answer, Decoding)
    names = ("labels", "objective") if decoded else ("visible", "hidden", "log_partition")
    return {name: getattr(answer, name) for name in names}


def answers(name: str, given: BipartiteEnergy, num_iters: int = 8, **settings) -> dict[str, torch.Tensor]:
    return tensors(ROUTINES[name](given, num_iters=num_iters, tol=0.0, **settings))


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_compiled_kernel_answers_as_the_reference(name, dtype):
    given = energy(dtype)
    plain, streaming = (answers(name, given, backend=each) for each in ("plain", "streaming"))
    tolerance = 1e-10 if dtype is torch.float64 else 1e-4
    for each, expected in plain.items():
        torch.testing.assert_close(streaming[each], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_the_compiled_kernel_answers_as_the_reference_far_from_a_fixed_point(name, num_iters):
    given = energy(scale=1.0)
    plain, streaming = (answers(name, given, num_iters, backend=each) for each in ("plain", "streaming"))
    for each, expected in plain.items():
        torch.testing.assert_close(streaming[each], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (0.5, 2.0, -1.0, 1.0)])
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_all_backends_have_one_gradient_far_from_a_fixed_point(num_iters, weights):
    found = {}
    for backend in ("plain", "streaming"):
        given = energy(scale=1.0)
        sides = [tensor.requires_grad_() for tensor in (given.visible, given.hidden, given.coupling)]
        settings = {"num_iters": num_iters, "tol": 0.0, "backend": backend}
        value = matrix_bp.marginals(BipartiteEnergy(*sides), **settings).log_partition
        found[backend] = torch.autograd.grad(value @ torch.tensor(weights, dtype=torch.float64), sides)
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    if len({*weights}) == 1:
        torch.testing.assert_close(
            found["plain"][2], answers("moments", energy(scale=1.0), num_iters)["pairs"]
        )


@pytest.mark.parametrize("name", ["marginals", "damped", "moments", "marginal_map"])
@pytest.mark.parametrize("of_energy", [torch.float64, torch.float32])
def test_answers_are_as_precise_as_messages(name, of_energy):
    given, dtype = energy(of_energy), torch.float32
    expected = answers(name, given.to(torch.float64), backend="plain")
    found = answers(name, given, message_dtype=dtype)
    # Log-odds are off by the rounding of all messages that are heard, probabilities by a quarter of that;
    # what is computed in float32 adds its own.
    heard = float(given.coupling.double().abs().sum(0).max())
    off = ROUNDING * heard / 4 + 2e-6
    # Labels that are decided alike have one objective.
    if dtype is not of_energy and name != "marginal_map":
        unrounded = answers(name, given)
        assert not all(torch.equal(values, unrounded[each]) for each, values in found.items())
    for each, values in found.items():
        scale = 4 * (VISIBLE + HIDDEN) if each in ("log_partition", "objective", "pairs") else 1
        assert values.dtype == (torch.int64 if each == "labels" else of_energy)
        torch.testing.assert_close(values.double(), expected[each].double(), rtol=0, atol=off * scale)


def test_single_precision_of_a_double_energy_is_that_of_a_single_one():
    found = matrix_bp.marginals(energy(), message_dtype=torch.float32)
    single = matrix_bp.marginals(energy(torch.float32))
    torch.testing.assert_close(found.visible, single.visible.double(), rtol=0, atol=1e-7)
    assert torch.equal(found.status.num_iters, single.status.num_iters)
    double = matrix_bp.marginals(energy(torch.float32), message_dtype=torch.float64)
    exact = matrix_bp.marginals(energy(torch.float32).to(torch.float64))
    torch.testing.assert_close(double.visible, exact.visible.float(), rtol=0, atol=1e-7)
    assert torch.equal(double.status.num_iters, exact.status.num_iters)


@pytest.mark.parametrize("dtype", [torch.float32, None])
@pytest.mark.parametrize("weights", [torch.ones(4), torch.arange(1.0, 5.0)], ids=["alike", "each its own"])
def test_gradients_are_beliefs_in_the_same_precision(dtype, weights):
    given, weights = energy(), weights.double()
    given.coupling.requires_grad_()
    settings = {"message_dtype": dtype, "tol": 1e-12, "num_iters": 100}
    found = matrix_bp.marginals(given, **settings)
    (gradient,) = torch.autograd.grad((weights * found.log_partition).sum(), given.coupling)
    examples = [energy().select(slice(row, row + 1)) for row in range(4)]
    sums = [matrix_bp.moments(each, **settings)[1] for each in examples]
    expected = torch.einsum("b,bvh->vh", weights, torch.stack(sums))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5 if dtype is torch.float32 else 1e-10)


@pytest.mark.parametrize("routine", [each for each in ROUTINES.values() if not isinstance(each, partial)])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"backend": "numba"},
            "backend: expected one of 'auto', 'plain', 'streaming', 'resident', got 'numba'",
        ),
        ({"message_dtype": torch.int8}, r"message_dtype: expected None or one of torch\.float64, .*int8"),
        ({"message_dtype": torch.bfloat16}, r"message_dtype: expected None or .*, got torch\.bfloat16"),
        ({"backend": "resident"}, "resident"),
    ],
)
def test_what_does_not_exist_is_refused(routine, settings, message):
    with pytest.raises(ValueError, match=message):
        routine(energy(torch.float32), **settings)
