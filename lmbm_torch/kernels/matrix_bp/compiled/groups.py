"""Matrix belief propagation compiled for the CPU, with one pass over the messages per iteration.

An instance stores the messages to visible units, a matrix with a row for each hidden unit. A pass computes
for each row the messages from visible units to the hidden unit, the belief of the hidden unit, and the new
messages. New messages replace old messages, and products by columns give the next beliefs of the visible
units. If messages are odds, each takes about twelve multiplications and additions and one division per
iteration, but no exponential: for an incoming message r along a weight log a, a unit of probability τ sends
the outgoing message (its answer)

    N / D,    N = r (1 − τ) + a τ,    D = r (1 − τ) + τ,

and a unit of probability τ' answers N / D by (N (1 − τ') + a D τ') / (N (1 − τ') + D τ'). A belief is a
product of messages, stored as mantissa and exponent without overflow or loss of digits. Messages beyond the
range of odds, damped messages and max-product messages are log-odds.

Threads share the instances or, for few large instances, the rows of an instance. Sums are divided into parts
that depend only on sizes: results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.kernels.jit import compiled
from lmbm_torch.kernels.matrix_bp.compiled import lanes
from lmbm_torch.kernels.matrix_bp.compiled.instance import (
    MOST_ROWS,
    PADDING,
    begin,
    believe,
    conclude,
    finish,
    iterate,
    judge,
    set_messages,
    start,
)
from lmbm_torch.kernels.matrix_bp.compiled.rows import encode
from lmbm_torch.kernels.matrix_bp.compiled.state import Instances, Model, borrowed, empty, new_state
from lmbm_torch.kernels.matrix_bp.plain import LOG_RANGE, ODDS_LIMIT, Beliefs, Problem, Product, converted
from lmbm_torch.kernels.threads import interruptible, share
from lmbm_torch.memory import part_bytes

# Bytes of the rows that are processed together, so that they stay in the second-level cache.
_ROW_BYTES = 2**18

# Number of messages in a part of the rows; below, largest numbers of parts and of groups of instances, and of
# bytes for the sums of pairwise beliefs, of which each group has one.
_PART_MESSAGES = 2**16
_MOST_PARTS = 64
# With fewer messages, rows are not shared: an iteration is faster than two synchronisations of threads.
_SHARED_MESSAGES = 3 * 2**20
_SUM_BYTES = 2**27

# A certain unit has odds of 2 to this power, divided by the largest message, so that twice the square does
# not overflow. The probability is then 1 up to 2e-6 in float32, and up to rounding in float64.
_MOST_POWER = {torch.float32: 62, torch.float64: 510}
_WIDEST = {torch.float32: 15.0, torch.float64: 150.0}

# Number of rows that a thread converts to odds at a time.
_ENCODED = 64

# Starting a group takes as long as this number of messages in an iteration.
_GROUP_MESSAGES = 2**19
# Number of iterations in whose time a sum of pairwise beliefs counts as cheap enough for a group of its own.
_SUM_ITERATIONS = 64


@compiled
def _propagate_group(model, state, scratch, instances, bounds, pair_sum, first, last):
    """Run belief propagation on instances one after another, in the current thread."""
    parts = len(bounds) - 1
    for row in range(first, last):
        if instances.stop[0]:
            break
        messages = instances.messages[row] if len(instances.messages) > 0 else scratch
        iteration, residual = 0, np.inf
        if not model.silent:
            for part in range(parts):
                set_messages(model, messages, bounds, part)
        start(model, state, instances, row, messages)
        if model.silent:
            for part in range(parts):
                begin(model, state, messages, bounds, part)
            believe(model, state)
            iteration = 1
        while iteration < model.num_iters and residual > model.tol and not instances.stop[0]:
            for part in range(parts):
                iterate(model, state, messages, bounds, part)
            believe(model, state)
            iteration += 1
            residual = judge(model, state, iteration)
        instances.num_iters[row], instances.residual[row] = iteration, residual
        for part in range(parts):
            finish(model, state, instances, row, messages, pair_sum, bounds, part)
        conclude(model, state, instances, row)


def _propagate_rows(model, state, scratch, instances, bounds, pair_sum, first, last):
    """Run belief propagation on instances one after another; all threads share the rows of each instance."""
    parts = range(len(bounds) - 1)
    for row in range(first, last):
        messages = instances.messages[row] if len(instances.messages) > 0 else scratch
        iteration, residual = 0, math.inf
        # All threads write the messages first, so that memory is close to the core that uses it.
        if not model.silent:
            share(parts, partial(set_messages, model, messages, bounds))
        start(model, state, instances, row, messages)
        if model.silent:
            share(parts, partial(begin, model, state, messages, bounds))
            believe(model, state)
            iteration = 1
        while iteration < model.num_iters and residual > model.tol:
            share(parts, partial(iterate, model, state, messages, bounds))
            believe(model, state)
            iteration += 1
            residual = judge(model, state, iteration)
        instances.num_iters[row], instances.residual[row] = iteration, residual
        share(parts, partial(finish, model, state, instances, row, messages, pair_sum, bounds))
        conclude(model, state, instances, row)


def propagate(problem: Problem) -> Beliefs:
    """Run belief propagation for tensors on the CPU."""
    (num_visible, num_hidden), dtype, widest = problem.coupling.shape, problem.visible.dtype, _spread(problem)
    in_odds = problem.product is not Product.MAX and problem.damping == 0
    if in_odds and widest <= ODDS_LIMIT[dtype] and lanes.suits(problem):
        return lanes.propagate(problem, int(LOG_RANGE[dtype] / max(widest, 1.0)))
    if in_odds and dtype == torch.float32 and _WIDEST[dtype] < widest <= _WIDEST[torch.float64]:
        # Messages exceed the range of float32: float64 takes twice as long, log-odds far longer.
        return converted(propagate(converted(problem, torch.float64)), dtype)
    in_odds = in_odds and widest <= _WIDEST[dtype]
    columns = -(-num_visible // PADDING) * PADDING
    with borrowed((num_hidden, columns), problem.coupling.numpy().dtype) as weight:
        _encode(problem.coupling, in_odds, weight[None])
        return _propagate(problem, _model(problem, widest, in_odds, weight))


def _propagate(problem: Problem, model: Model) -> Beliefs:
    """Run belief propagation with weights that are already converted."""
    batch, (num_hidden, columns), in_odds = len(problem.visible), model.weight.shape, model.in_odds
    instances = _instances(problem, in_odds, columns)
    parts = _parts(num_hidden, columns)
    work = batch * num_hidden * columns * problem.num_iters
    groups = max(1, min(_MOST_PARTS, batch, work // _GROUP_MESSAGES))
    rows_summed = 0
    if problem.pair_weights is not None:
        iterations = batch * problem.num_iters
        groups = max(
            1, min(groups, iterations // _SUM_ITERATIONS, part_bytes(_SUM_BYTES) // model.weight.nbytes)
        )
        groups, rows_summed = _power_of_two(groups), num_hidden
    pair_sums = torch.zeros(groups, rows_summed, columns, dtype=problem.visible.dtype, device="cpu")
    bounds = np.linspace(0, num_hidden, parts + 1).astype(np.int64)
    firsts = np.linspace(0, batch, groups + 1).astype(np.int64)

    def propagate_group(run: Callable[..., None], group: int) -> None:
        with borrowed(model.weight.shape, model.weight.dtype) as scratch:
            state, pair_sum = new_state(model, parts), pair_sums[group].numpy()
            run(model, state, scratch, instances, bounds, pair_sum, firsts[group], firsts[group + 1])

    if groups >= torch.get_num_threads() or num_hidden * columns < _SHARED_MESSAGES:
        share_all = partial(share, range(groups), partial(propagate_group, _propagate_group))
        if work > lanes.LONG_WORK:
            interruptible(share_all, lambda: instances.stop.fill(True))
        else:
            share_all()
    else:
        for group in range(groups):
            propagate_group(_propagate_rows, group)
    return _beliefs(problem, instances, in_odds, pair_sums)


def _parts(rows: int, columns: int) -> int:
    wanted = max(1, min(_MOST_PARTS, rows * columns // _PART_MESSAGES))
    return min(_power_of_two(wanted), rows)


def _power_of_two(count: int) -> int:
    """Round ``count`` up to a power of two, which two or four threads can share evenly."""
    return 1 << (count - 1).bit_length()


def _model(problem: Problem, widest: float, in_odds: bool, weight: np.ndarray) -> Model:
    dtype, columns = problem.visible.dtype, weight.shape[1]
    rows_per_flush = max(1, int(LOG_RANGE[dtype] / max(widest, 1.0)))
    fitting = _ROW_BYTES // (2 * columns * dtype.itemsize)
    rows_at_a_time = max(1, min(MOST_ROWS, fitting, rows_per_flush))
    return Model(
        weight=weight,
        in_odds=in_odds,
        maximise=problem.product is Product.MAX,
        decide=problem.product is Product.MIXED,
        # Limit the odds, so that (m + w own)², for messages m and weights w, does not overflow.
        most_odds=2.0 ** (_MOST_POWER[dtype] - math.ceil(widest / math.log(2))),
        damping=problem.damping,
        rows_at_a_time=rows_at_a_time,
        rows_per_flush=rows_per_flush - rows_per_flush % rows_at_a_time,
        num_iters=problem.num_iters,
        tol=problem.tol,
        warm=problem.start is not None,
        silent=problem.init is not None
        or ((in_odds or problem.product is Product.MAX) and problem.start is None and problem.known is None),
    )


def _instances(problem: Problem, in_odds: bool, columns: int) -> Instances:
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    dtype = problem.visible.dtype
    added = (0, columns - num_visible)
    kind = problem.visible.numpy().dtype
    kept = batch if problem.keep_messages or problem.start is not None else 0
    messages = empty((kept, num_hidden, columns), kind)
    if problem.start is not None:
        _encode(problem.start, in_odds, messages)
    known = torch.full((1, num_visible), math.nan, device="cpu") if problem.known is None else problem.known
    weights = torch.zeros(batch, device="cpu") if problem.pair_weights is None else problem.pair_weights
    return Instances(
        visible=pad(problem.visible.double(), added).numpy(),
        hidden=problem.hidden.double().contiguous().numpy(),
        init=(problem.hidden[:0] if problem.init is None else problem.init.logit()).double().numpy(),
        known=pad(known.double(), added, value=math.nan).numpy(),
        messages=messages,
        to_hidden=empty((batch, num_hidden if problem.keep_messages else 0, columns), kind),
        pair_weights=weights.to(dtype).contiguous().numpy(),
        visible_out=np.empty((batch, num_visible)),
        hidden_out=np.empty((batch, num_hidden)),
        log_partition=np.empty(batch),
        num_iters=np.empty(batch, np.int64),
        residual=np.empty(batch),
        stop=np.zeros(1, np.bool_),
    )


def _encode(values: Tensor, in_odds: bool, rows: np.ndarray) -> None:
    """Convert log-odds (…, visible, hidden) to padded rows (…, hidden, columns) of odds or log-odds."""
    matrices = values.contiguous().numpy().reshape(-1, *values.shape[-2:])
    num_hidden = rows.shape[1]

    def encode_some(task: tuple[int, int]) -> None:
        matrix, first = task
        encode(matrices[matrix], in_odds, rows[matrix], first, min(first + _ENCODED, num_hidden))

    share(product(range(len(rows)), range(0, num_hidden, _ENCODED)), encode_some)


def _spread(problem: Problem) -> float:
    """Return the largest possible |message|, by NumPy, because torch's threads would keep spinning."""
    given = [problem.coupling] if problem.start is None else [problem.coupling, problem.start]
    return max(float(max(-values.numpy().min(), values.numpy().max())) for values in given)


def _beliefs(problem: Problem, instances: Instances, in_odds: bool, pair_sums: Tensor) -> Beliefs:
    num_visible, dtype = problem.visible.shape[1], problem.visible.dtype

    def as_messages(rows: np.ndarray) -> Tensor | None:
        if not problem.keep_messages:
            return None
        messages = torch.from_numpy(rows)[..., :num_visible].mT.contiguous()
        return messages.log_() if in_odds else messages

    pair_sum = None
    if problem.pair_weights is not None:
        pair_sum = pair_sums.sum(0)[:, :num_visible].mT.contiguous()
    return Beliefs(
        visible=torch.from_numpy(instances.visible_out).to(dtype),
        hidden=torch.from_numpy(instances.hidden_out).to(dtype),
        log_partition=torch.from_numpy(instances.log_partition).to(dtype),
        num_iters=torch.from_numpy(instances.num_iters),
        residual=torch.from_numpy(instances.residual).to(dtype),
        to_visible=as_messages(instances.messages),
        to_hidden=as_messages(instances.to_hidden),
        pair_sum=pair_sum,
    )
