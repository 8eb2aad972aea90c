"""Matrix belief propagation on CUDA devices: messages are read and written once per iteration.

The method is the CPU kernel's (:mod:`~lmbm_torch.kernels.matrix_bp.compiled.groups`): rows of messages, one
per hidden unit, pass through an iteration one after another. A row is loaded into registers, gives the hidden
unit's belief, and is stored as the unit's new answers, gathered by columns for the visible units' next
beliefs. Odds need two divisions per message, and logarithms of products only; messages beyond the range of
odds, damped messages and maxima are log-odds.

An iteration is one launch: the last program of an instance adds up the sums of all programs in a fixed order,
so results repeat to the last bit and instances do not affect each other. Converged instances return at once.
The host waits for the device before the first iteration and then every 16 iterations, to stop when no
instance changes; inside a CUDA graph (:func:`~lmbm_torch.verdicts.supposing`) never.

Measured on an H200: 69 to 77 % of a copy's bandwidth for float32 rows with 500 to 2,000 columns, 35 % in
float64 and 23 % in log-odds, both bound by instructions. Compiled for capability 8.0, 9.0 and 12.0; also runs
in Triton's interpreter. scripts/cycle_model.py bounds the time.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.kernels.matrix_bp import plain
from lmbm_torch.kernels.matrix_bp.compiled.cuda_kernels import Conclusions, State, conclude, iterate
from lmbm_torch.kernels.matrix_bp.plain import LOG_RANGE, ODDS_LIMIT, Beliefs, Problem, Product, spread
from lmbm_torch.memory import part_bytes
from lmbm_torch.verdicts import is_supposing

# Rows end with columns that tell nothing and are told nothing, so that each starts at a multiple of 16.
_PADDING = 16

# A thread has the registers that let sixteen warps be at hand at a time, and a program as many warps at most.
_MOST_REGISTERS = 128
_MOST_WARPS = 16

# Entries of a tile, where a row is not longer; bytes of a tile (twice as many of a tile that is not in odds)
# and bytes of a row for each warp: with fewer warps, values of a thread would leave the registers.
_TILE = 2048
_WARP_BYTES = 2048
_WARP_ROW_BYTES = 1024

# Rows of float32 of at least so many columns are fetched ahead, in tiles of which a warp holds so many
# entries in fewer registers, so that more of them are at hand: 1.1 to 1.35 times as fast on an H200.
_WIDE_ROW = 256
_WIDE_TILE = 1024
_WIDE_WARP = 256
_WIDE_REGISTERS = {True: 80, False: 96}  # in odds, in log-odds
_STAGES = 3

# Wider rows would be spilled.
MOST_COLUMNS = {torch.float32: 4096, torch.float64: 2048}

# Bytes of the neighbours in a row whose product is taken before a logarithm: what a thread loads at once.
_NEIGHBOURS_BYTES = 16

# Rows of a part. What a part gathers is written and read once, as two numbers for a column: a sixteenth of
# what is of its own messages. More rows make that less, but few parts leave a device idle.
_PART_ROWS = 32

# In the order in which `iterate` takes them.
_CONSTANTS = (
    *("PROVEN", "IN_ODDS", "MAXIMISE", "DECIDE"),
    *("PART_ROWS", "ROWS", "COLUMNS", "NEIGHBOURS", "STAGES"),
)

# Programs that fill a device, which the sum of pairwise beliefs is cut into, and the bytes of its parts.
_PROGRAMS = 1024
_SUM_BYTES = 2**27

# Messages of the instances that are taken together.
CHUNK_BYTES = 2**30

# Iterations between two looks at whether any instance still moves.
_LOOK_EVERY = 16


class _Form(NamedTuple):
    """The representation of messages, and the options of the kernels."""

    in_odds: bool
    columns: int  # of a row, with its padding
    in_range: int  # rows, a power of two, whose messages' product by columns no exponent is too small for
    options: dict[str, Any]  # what both kernels are compiled for


def propagate(problem: Problem) -> Beliefs:
    """Run belief propagation, for tensors on a CUDA device.

    Models with more than ``MOST_COLUMNS`` visible units use the plain reference.
    """
    dtype, num_visible = problem.visible.dtype, problem.visible.shape[1]
    if num_visible > MOST_COLUMNS[dtype]:
        return plain.propagate(problem)
    form = _form(problem)
    size = max(1, part_bytes(CHUNK_BYTES) // (problem.hidden.shape[1] * form.columns * dtype.itemsize))
    with torch.cuda.device_of(problem.visible):
        return plain.in_chunks(problem, size, lambda chunk: _propagate_chunk(chunk, form))


def _form(problem: Problem) -> _Form:
    dtype, num_visible = problem.visible.dtype, problem.visible.shape[1]
    widest = spread(problem)
    in_odds = problem.product is not Product.MAX and problem.damping == 0 and widest <= ODDS_LIMIT[dtype]
    columns = -(-num_visible // _PADDING) * _PADDING
    width = 1 << (columns - 1).bit_length()
    factors = int(LOG_RANGE[dtype] / (widest + 1)) if in_odds else _PART_ROWS
    most_rows = min(_PART_ROWS, _power_of_two(factors))
    if dtype is torch.float32 and width >= _WIDE_ROW:
        options = _ahead(width, most_rows, in_odds)
    else:
        options = _at_once(width, most_rows, dtype.itemsize, simple=in_odds)
    options |= {
        "IN_ODDS": in_odds,
        "MAXIMISE": problem.product is Product.MAX,
        "COLUMNS": width,
        "NEIGHBOURS": min(_NEIGHBOURS_BYTES // dtype.itemsize, _power_of_two(factors)),
    }
    return _Form(in_odds, columns, _power_of_two(max(options["ROWS"], factors)), options)


def _ahead(width: int, most_rows: int, in_odds: bool) -> dict[str, Any]:
    """Return options for tiles of float32 fetched in advance."""
    rows = min(most_rows, max(1, _WIDE_TILE // width))
    warps = max(1, min(_MOST_WARPS, rows * width // _WIDE_WARP))
    # Of the largest programs a multiprocessor holds one, whatever their registers.
    registers = _WIDE_REGISTERS[in_odds] if warps < _MOST_WARPS else _MOST_REGISTERS
    return {"ROWS": rows, "num_warps": warps, "maxnreg": registers, "STAGES": _STAGES}


def _at_once(width: int, most_rows: int, itemsize: int, simple: bool) -> dict[str, Any]:
    """Return options for larger tiles, fetched when needed."""
    # A single row of odds in float64 took an H200 8 to 25 times as long.
    least_rows = 2 if simple and itemsize == 8 else 1
    rows = min(most_rows, max(least_rows, _TILE // width))
    tile_bytes = rows * width * itemsize * (1 if simple else 2)
    warps = max(1, tile_bytes // _WARP_BYTES, width * itemsize // _WARP_ROW_BYTES)
    return {"ROWS": rows, "num_warps": min(_MOST_WARPS, warps), "maxnreg": _MOST_REGISTERS, "STAGES": 1}


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to ``number``."""
    return 1 << number.bit_length() - 1


def _propagate_chunk(problem: Problem, form: _Form) -> Beliefs:
    (batch, num_visible), num_hidden = problem.visible.shape, problem.hidden.shape[1]
    added = (0, form.columns - num_visible)
    weight = _wide(problem.coupling.mT, form)
    if problem.start is None:
        neutral = 1.0 if form.in_odds else 0.0
        messages = weight.new_full((batch, num_hidden, form.columns), neutral)
    else:
        messages = _as_rows(problem.start, form)
    parts = -(-num_hidden // _PART_ROWS)
    known = torch.full_like(problem.visible, torch.nan) if problem.known is None else problem.known
    field_type = weight.dtype if form.in_odds else torch.float64
    precise = partial(torch.empty, dtype=torch.float64, device=weight.device)
    counts = partial(torch.full, (batch,), device=weight.device)
    state = State(
        messages=messages,
        weight=weight,
        hidden=problem.hidden.to(field_type).contiguous(),
        visible=pad(problem.visible.double(), added),
        known=pad(known.to(weight.dtype), added, value=torch.nan),
        sent=pad(plain.first_sent(problem).to(field_type), added),
        fields=precise(batch, form.columns),
        totals=torch.empty(
            batch, parts, 2 if form.in_odds else 1, form.columns, dtype=field_type, device=weight.device
        ),
        changes=weight.new_empty(batch, parts),
        arrived=counts(fill_value=0, dtype=torch.int32),
        moving=counts(fill_value=1, dtype=torch.int32),
        num_iters=counts(fill_value=0, dtype=torch.int64),
        residual=weight.new_full((batch,), torch.inf),
        # Not copied from the host: that is a wait.
        settings=torch.cat([weight.new_full((1,), value) for value in (problem.tol, problem.damping)]),
    )
    _iterate(problem, form, state)
    return _beliefs(problem, form, state)


def _as_rows(values: Tensor, form: _Form) -> Tensor:
    """Convert log-odds (..., visible, hidden) to padded rows of the hidden units."""
    rows = pad(values.mT, (0, form.columns - values.shape[-2])).contiguous()
    return rows.exp_() if form.in_odds else rows


def _wide(rows: Tensor, form: _Form) -> Tensor:
    """Convert rows of weights to odds or log-odds, padded to whole tiles: loads need no mask."""
    height, width = form.options["ROWS"], form.options["COLUMNS"]
    filled = pad(rows, (0, width - rows.shape[1], 0, -len(rows) % height)).contiguous()
    return filled.exp_() if form.in_odds else filled


def _iterate(problem: Problem, form: _Form, state: State) -> None:
    """Iterate until nothing changes; ``state`` is modified."""
    (batch, num_hidden, num_columns), parts = state.messages.shape, state.totals.shape[1]
    options: dict[str, Any] = form.options | {
        "DECIDE": problem.product is Product.MIXED,
        "PART_ROWS": _PART_ROWS,
    }
    grid, numbers = (batch * parts, 1, 1), (state, batch, num_hidden, num_columns, parts, form.in_range)
    launch = None
    for iteration in range(problem.num_iters):
        is_time = iteration > 0 and iteration % _LOOK_EVERY == 0 and not is_supposing()
        if is_time and not bool(state.moving.any()):
            break
        if launch is not None:
            launch()
            continue
        # From nothing, the first answers ignore the visible units: that they say nothing proves nothing.
        proven = iteration > 0 or problem.start is not None
        constants: dict[str, Any] = {"PROVEN": proven} | options
        program = iterate[grid](*numbers, **constants)
        if proven and program is not None:
            # To bind the same arguments again takes the host longer than a device's iteration.
            launch = partial(program[grid], *numbers, *(constants[name] for name in _CONSTANTS))


def _beliefs(problem: Problem, form: _Form, state: State) -> Beliefs:
    """Read the messages a last time for the requested outputs."""
    (batch, num_hidden, num_columns), weight = state.messages.shape, state.weight
    tiles = -(-num_hidden // form.options["ROWS"])
    groups, pair_sums, to_hidden = batch, weight.new_empty(0), weight.new_empty(0)
    if problem.pair_weights is not None:
        groups = max(1, min(batch, -(-_PROGRAMS // tiles), part_bytes(_SUM_BYTES) // weight.nbytes))
        pair_sums = weight.new_empty(groups, num_hidden, num_columns)
    if problem.keep_messages:
        to_hidden = torch.empty_like(state.messages)
    sums = Conclusions(
        pair_weights=state.residual if problem.pair_weights is None else problem.pair_weights.contiguous(),
        fields=torch.empty_like(state.hidden, dtype=torch.float64),
        row_values=torch.empty_like(state.hidden, dtype=torch.float64),
        to_hidden=to_hidden,
        pair_sums=pair_sums,
    )
    options: dict[str, Any] = {name: value for name, value in form.options.items() if name != "STAGES"} | {
        "KEEP": problem.keep_messages,
        "PAIRS": problem.pair_weights is not None,
        # It has more to keep than an iteration.
        "num_warps": min(_MOST_WARPS, 2 * form.options["num_warps"]),
        "maxnreg": _MOST_REGISTERS,
    }
    conclude[(groups * tiles,)](state, sums, batch, num_hidden, num_columns, groups, **options)
    dtype, num_visible = problem.visible.dtype, problem.visible.shape[1]
    fields, pairs = state.fields[:, :num_visible], sums.row_values.sum(1)
    if form.in_odds:
        # The rows' values are of pairs times the messages in them.
        pairs -= (fields - problem.visible).sum(1)

    def as_messages(rows: Tensor) -> Tensor:
        messages = rows[..., :num_visible].mT.to(dtype, memory_format=torch.contiguous_format)
        return messages.log() if form.in_odds else messages

    return Beliefs(
        visible=fields.to(dtype),
        hidden=sums.fields.to(dtype),
        log_partition=plain.log_partition(problem, fields, sums.fields, pairs).to(dtype),
        num_iters=state.num_iters,
        residual=state.residual,
        to_visible=as_messages(state.messages) if problem.keep_messages else None,
        to_hidden=as_messages(to_hidden) if problem.keep_messages else None,
        pair_sum=None if problem.pair_weights is None else pair_sums.sum(0)[:, :num_visible].mT.contiguous(),
    )
