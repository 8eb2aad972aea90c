"""Belief propagation on Boltzmann machines with couplings of pairs; all messages are computed at once.

The result is exact if the couplings form a forest and propagation has converged, after about as many
iterations as the longest path has couplings. On other graphs, a fixed point of sum-product is a stationary
point of the Bethe free energy. The cost of an iteration is the number of labels times the largest number of
neighbours.

If propagation does not converge, Newton's method finds a minimum of the Bethe free energy. Given the means of
two coupled spins, the best joint distribution has a closed form: so the free energy is a function only of the
labels' means (belief optimisation: Welling and Teh, UAI 2001). The stationary points are the fixed points of
propagation; descent finds minima only. Fields f are half log-odds; the distribution of a pair is exp(J s_i
s_j + a s_i + b s_j), with the cavity fields a and b of i and j, and

    f_i = a + u(b),   f_j = b + u(a),   u(c) = atanh(tanh J tanh c)
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmbm_torch.checks import check_not_negative
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.iterations import Settings
from lmbm_torch.inference.common.results import Marginals, PairwiseMessages, Status
from lmbm_torch.inference.messages.tree_reweighted import Graph, max_tail, propagate, sum_tail
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals", "max_marginals"]

Array = NDArray[np.float64]

# Largest number of labels for Newton's method: a matrix of labels by labels then takes 32 MB.
MAX_LABELS = 2000
# Largest change of a half log-odds in a step: farther away the quadratic model is not good.
LARGEST_STEP = 2.0
# Least curvature that is assumed along a direction if the function is not convex.
LEAST_CURVATURE = 1e-3
# Least share of the predicted decrease that a step must reach, and largest number of halvings of a step.
SUFFICIENT = 1e-4
MAX_HALVINGS = 30
# Most iterations of Newton's method on pairs (safeguarded by bisection); the result's relative rounding.
PAIR_ITERS = 100
ROUND_OFF = 1e-14


class Model(NamedTuple):
    """Model of a single example.

    Args:
        unary: (labels,).
        first, second: (pairs,), the labels of each coupled pair.
        coupling: J, (pairs,).
    """

    unary: Array
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    coupling: Array


class Point(NamedTuple):
    """Fields f (labels,) and the cavity fields of the pairs' first and second labels (pairs,)."""

    fields: Array
    first: Array
    second: Array


def descended(
    graph: Graph, messages: Tensor, status: Status, *, tol: float, num_iters: int
) -> tuple[Tensor, Status]:
    """Minimise the Bethe free energy of the examples without convergence; return messages and status.

    Args:
        messages: (batch, labels, neighbours).
    """
    open_rows = (~status.converged).nonzero().flatten().tolist()
    if len(graph.neighbours) > MAX_LABELS or not open_rows:
        return messages, status
    fields = graph.fields(messages).detach().double().cpu().numpy()
    messages, num_steps, residual = messages.clone(), status.num_iters.clone(), status.residual.clone()
    for row in open_rows:
        model, places = _model(graph, row)
        point, left, steps = descend(model, fields[row], tol, num_iters)
        num_steps[row] += steps
        if left < residual[row]:
            residual[row] = left
            found = np.concatenate(
                [point.fields[model.first] - point.first, point.fields[model.second] - point.second]
            )
            messages[row].view(-1)[places] = torch.from_numpy(found).to(messages)
    converged = residual <= tol
    return messages, Status(converged & graph.is_forest(), converged, num_steps, residual)


def _model(graph: Graph, row: int) -> tuple[Model, Tensor]:
    """Return an example's model, and the indices of the messages to the pairs' first, then second labels."""
    coupling = graph.coupling[row if len(graph.coupling) > 1 else 0].detach()
    is_first = torch.arange(len(coupling), device=coupling.device)[:, None] < graph.neighbours
    place = (is_first & (coupling != 0)).flatten().nonzero().flatten()
    back = graph.reverse[place]
    neighbours = coupling.shape[1]
    first, second = (at.cpu().numpy() // neighbours for at in (place, back))
    strength = coupling.flatten()[place].double().cpu().numpy()
    unary = graph.unary[row].detach().double().cpu().numpy()
    return Model(unary, first, second, strength), torch.cat([place, back])


def descend(model: Model, start: Array, tol: float, num_iters: int) -> tuple[Point, float, int]:
    """Minimise the Bethe free energy from the fields ``start``; return point, largest |gradient| and steps.

    The gradient with respect to a label's mean is the label's field minus its unary and the sum of the
    messages to it. Hence one more update of belief propagation changes no message by more than the largest
    |gradient|.
    """
    point = _paired(model, start)
    for step in range(num_iters):
        gradient = _gradient(model, point)
        if np.abs(gradient).max() <= tol:
            return point, float(np.abs(gradient).max()), step
        moved = _step(model, point, gradient)
        if moved is None:
            return point, float(np.abs(gradient).max()), step
        point = moved
    return point, float(np.abs(_gradient(model, point)).max()), num_iters


def _step(model: Model, point: Point, gradient: Array) -> Point | None:
    """Return the point after one step; None if no step length lowers the value."""
    direction = _direction(model, point, gradient)
    if not np.isfinite(direction).all():
        return None
    direction *= min(1.0, LARGEST_STEP / np.abs(direction).max())
    # The gradient is with respect to means; the variance is the derivative of means with respect to fields.
    slope = float((gradient * direction) @ _variance(point.fields))
    value = _free_energy(model, point)
    for halvings in range(MAX_HALVINGS):
        share = 0.5**halvings
        moved = _paired(model, point.fields + share * direction)
        if _free_energy(model, moved) <= value + SUFFICIENT * share * slope + ROUND_OFF * (1 + abs(value)):
            return moved
    return None


def _direction(model: Model, point: Point, gradient: Array) -> Array:
    """Return Newton's direction; if the function is not convex, with the magnitudes of the curvatures."""
    by_first, by_second = _response(point.first, model.coupling), _response(point.second, model.coupling)
    squares = np.minimum(by_first * by_second, 1 - LEAST_CURVATURE**4)
    labels = len(point.fields)
    own = np.ones(labels)
    np.add.at(own, model.first, squares / (1 - squares))
    np.add.at(own, model.second, squares / (1 - squares))
    # In fields instead of means, the matrix is not symmetric, but precise for labels that are almost certain.
    hessian, scaled = np.diag(own), np.diag(own)
    hessian[model.first, model.second] = -by_second / (1 - squares)
    hessian[model.second, model.first] = -by_first / (1 - squares)
    mixed = -np.sign(model.coupling) * np.sqrt(squares) / (1 - squares)
    scaled[model.first, model.second] = scaled[model.second, model.first] = mixed
    try:
        np.linalg.cholesky(scaled)
        return -np.linalg.solve(hessian, gradient).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled)
        deviation = np.sqrt(_variance(point.fields))
        along = (vectors.T @ (deviation * gradient)) / np.maximum(np.abs(values), LEAST_CURVATURE)
        return np.asarray(-(vectors @ along) / deviation, np.float64)


def _gradient(model: Model, point: Point) -> Array:
    """Return ∂F/∂E[s_i] = f_i − unary_i − Σ_j (f_i − a_ij)."""
    messages = np.zeros(len(point.fields))
    np.add.at(messages, model.first, point.fields[model.first] - point.first)
    np.add.at(messages, model.second, point.fields[model.second] - point.second)
    return point.fields - model.unary - messages


def _free_energy(model: Model, point: Point) -> float:
    """Return the Bethe free energy of the means and the best joint distributions of pairs."""
    means = np.tanh(point.fields)
    others = np.bincount(model.first, minlength=len(means)) + np.bincount(model.second, minlength=len(means))
    negative_entropy = point.fields * means - _size(point.fields)
    a, b = point.first, point.second
    agree, differ = _size(a + b), _size(a - b)
    log_partition = (agree + differ) / 2 + _size(model.coupling + (agree - differ) / 2)
    pairs = a * means[model.first] + b * means[model.second] - log_partition
    return float(((1 - others) * negative_entropy - model.unary * means).sum() + pairs.sum())


def _paired(model: Model, fields: Array) -> Point:
    """Return the pairs' cavity fields for these fields: solve b + u(f_i − u(b)) = f_j, which rises with b."""
    first, second, coupling = fields[model.first], fields[model.second], model.coupling
    low, high = second - np.abs(coupling), second + np.abs(coupling)
    b = second.copy()
    for _ in range(PAIR_ITERS):
        a = first - _message(b, coupling)
        excess = b + _message(a, coupling) - second
        if np.abs(excess).max(initial=0.0) <= ROUND_OFF * (1 + np.abs(second).max(initial=0.0)):
            break
        low, high = np.where(excess < 0, b, low), np.where(excess < 0, high, b)
        rise = 1 - _response(a, coupling) * _response(b, coupling)
        newton = b - excess / np.maximum(rise, LEAST_CURVATURE**4)
        b = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
    return Point(fields, first - _message(b, coupling), b)


def _message(cavity: Array, coupling: Array) -> Array:
    """Return u(c) = ½ log 2cosh(c + J) − ½ log 2cosh(c − J)."""
    most = np.abs(coupling)
    hard = np.sign(coupling) * np.clip(cavity, -most, most)
    return hard + (_tail(cavity + coupling) - _tail(cavity - coupling)) / 2


def _response(cavity: Array, coupling: Array) -> Array:
    """Return u'(c) = sinh(2J) / (cosh(2c) + cosh(2J))."""
    most = 2 * np.maximum(np.abs(cavity), np.abs(coupling))
    up, down = np.exp(2 * coupling - most), np.exp(-2 * coupling - most)
    return (up - down) / (np.exp(2 * cavity - most) + np.exp(-2 * cavity - most) + up + down)


def _variance(fields: Array) -> Array:
    """Return 1 − tanh², without cancellation."""
    small = np.exp(-2 * np.abs(fields))
    return 4 * small / (1 + small) ** 2


def _size(values: Array) -> Array:
    """Return log 2cosh."""
    return np.abs(values) + _tail(values)


def _tail(values: Array) -> Array:
    return np.log1p(np.exp(-2 * np.abs(values)))


@one_door
def marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.0,
    newton_iters: int = 100,
    known: Known | None = None,
    messages: PairwiseMessages | None = None,
    keep_messages: bool = False,
) -> Marginals:
    """Return sum-product marginals, and the Bethe approximation of the log partition.

    Examples that do not converge, for instance with strong couplings of both signs in many cycles, continue
    with a descent of the Bethe free energy from the last beliefs. Each step lowers the free energy, and the
    end is a fixed point, too; for 400 labels a step takes some 20 ms.

    ``log_partition`` is differentiable in the energy's tensors, with messages held constant. At a fixed
    point, where ``log_partition`` is stationary in the messages, this is the true gradient: the beliefs of
    labels and pairs. There is no second derivative.

    Args:
        energy: a Boltzmann machine in float32 or float64, on any device.
        num_iters: the largest number of iterations.
        tol: an example has converged, and no longer changes, once an undamped update would change no message
            by more than ``tol``, in units of the local fields.
        damping: the share of the old value in a message, at least 0 and below 1.
        newton_iters: the largest number of steps of the descent, in float64 on the CPU; 0 for no descent.
            With ``tol`` = 0 or more than 2,000 labels (whose Hessian would be large) there is no descent.
        known: {0, 1, NaN}, NaN for a free label; the results are conditional on the known labels.
        messages: the first messages, for instance of an earlier result, of the same coupled pairs.
        keep_messages: return ``messages``.

    Returns:
        Marginals with ``status.residual`` in the units of ``tol``; ``status.exact``: propagation converged on
        a forest. ``status.num_iters`` includes the steps of descent.

    Raises:
        ValueError: NaN or infinity in the energy or in ``messages``, or couplings that are not symmetric;
            another dtype; ``num_iters`` below 1; a negative ``tol`` or ``newton_iters``; ``damping`` outside
            [0, 1); ``known`` of another shape than (batch, labels), or with impossible values; ``messages``
            of another shape, dtype, device or graph.
        RuntimeError: a gradient is differentiated again.
    """
    graph = Graph.of(first_order(energy, "pairwise_bp.marginals"), known, sum_tail)
    check_not_negative("newton_iters", newton_iters)
    settings = Settings(num_iters, tol, damping, known, messages, keep_messages)
    finish = partial(descended, tol=tol, num_iters=newton_iters)
    return propagate(graph, _bethe, settings, finish if newton_iters and tol else None)


@one_door
@torch.no_grad()
def max_marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 100,
    tol: float = 1e-6,
    damping: float = 0.0,
    known: Known | None = None,
    messages: PairwiseMessages | None = None,
    keep_messages: bool = False,
) -> Marginals:
    """Return max-product beliefs: how much better the best labelling with a label at 1 is than with 0.

    ``labels`` is σ(m_1 − m_0) with m_y the largest score of any labelling with y_i = y: above ½ every best
    labelling has y_i = 1. ``log_partition`` is the largest score. Both are exact on a forest; on other graphs
    they are the zero-temperature Bethe approximation.

    Args:
        energy: see :func:`marginals`, also for all other arguments; ``known`` restricts the labellings.

    Returns:
        As :func:`marginals`, without gradient.

    Raises:
        ValueError: see :func:`marginals`.
    """
    graph = Graph.of(energy, known, max_tail)
    return propagate(graph, _bethe, Settings(num_iters, tol, damping, known, messages, keep_messages))


def _bethe(graph: Graph, messages: Float[Tensor, "batch labels neighbours"]) -> Float[Tensor, " batch"]:
    """Return Σ_i (1 − degree_i) log Z_i + Σ_ij log Z_ij, from labels' fields and pairs' cavity fields."""
    fields = graph.fields(messages)
    cavities = graph.cavities(fields, messages)
    back = graph.reversed(cavities)
    # The cases of equal spins and of different spins; log(e^a + e^b) is (a + b)/2 + size((a − b)/2).
    agree, differ = graph.size(cavities + back), graph.size(cavities - back)
    pairs = (agree + differ) / 2 + graph.size(graph.coupling + (agree - differ) / 2)
    labels = (1 - graph.appearance.sum(-1)) * graph.size(fields)
    return graph.constant + labels.sum(-1) + (graph.appearance * pairs).sum((-2, -1)) / 2
