"""Matrix belief propagation on CUDA devices, which reads and writes messages once per iteration.

The method is that of the CPU kernel (:mod:`~lmbm_torch.kernels.matrix_bp.compiled.groups`). A row has the
messages of one hidden unit. A row is loaded into registers, gives the belief of the hidden unit, and is
replaced by the unit's new messages. Products of new messages by columns give the next beliefs of the visible
units. If messages are odds, each needs two divisions, and logarithms are only taken of products. Messages
beyond the range of odds, damped messages and max-product messages are log-odds.

An iteration is one launch. A program (a block of threads) computes a part of an instance; the last program of
an instance adds the sums of all programs in a fixed order, which makes results reproducible and independent
of further instances. Programs of converged instances return at once. The CPU waits for the GPU before the
first iteration and after every 16 iterations, to check convergence; inside a CUDA graph
(:func:`~lmbm_torch.verdicts.supposing`), never.

On an H200 the kernel reaches 69 to 77 % of the bandwidth of a copy for float32 rows with 500 to 2,000
columns, 35 % in float64 and 23 % in log-odds, where arithmetic is the limit. The kernel compiles for the
capabilities 8.0, 9.0 and 12.0, and runs in Triton's interpreter. scripts/cycle_model.py bounds the time.
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

# Rows are padded with neutral messages to a multiple of this length, so that all rows are aligned.
_PADDING = 16

# Registers of a thread, for 16 warps on a multiprocessor; below, the largest number of warps of a program.
_MOST_REGISTERS = 128
_MOST_WARPS = 16

# A tile is the rows that a program holds in registers. Entries of a tile (or one longer row); bytes of a tile
# in log-odds, twice those in odds, and bytes of a row, for each warp. More would spill registers.
_TILE = 2048
_WARP_BYTES = 2048
_WARP_ROW_BYTES = 1024

# Rows of float32 with at least this number of columns are loaded before they are needed, in smaller tiles,
# with fewer registers and more warps: 1.1 to 1.35 times as fast on an H200.
_WIDE_ROW = 256
_WIDE_TILE = 1024
_WIDE_WARP = 256
_WIDE_REGISTERS = {True: 80, False: 96}  # registers with messages in odds, in log-odds
_STAGES = 3

# Largest number of columns; registers for longer rows would be spilled to memory.
MOST_COLUMNS = {torch.float32: 4096, torch.float64: 2048}

# Bytes of neighbouring messages, loaded at once, that are multiplied before a logarithm is taken.
_NEIGHBOURS_BYTES = 16

# Rows of a part. The products of a part are written and read once, which costs a sixteenth of its messages.
# Larger parts cost less, but too few parts leave a device idle.
_PART_ROWS = 32

# Names of the compile-time constants of `iterate`, in the order of its arguments.
_CONSTANTS = (
    *("PROVEN", "IN_ODDS", "MAXIMISE", "DECIDE"),
    *("PART_ROWS", "ROWS", "COLUMNS", "NEIGHBOURS", "STAGES"),
)

# Number of programs for the sum of pairwise beliefs; below, the largest size of partial sums in bytes.
_PROGRAMS = 1024
_SUM_BYTES = 2**27

# Largest number of bytes of the messages of instances that are processed together.
CHUNK_BYTES = 2**30

# Number of iterations between two checks of convergence, for which the CPU waits for the GPU.
_LOOK_EVERY = 16


class _Form(NamedTuple):
    """The representation of messages, and the options of the kernels."""

    in_odds: bool
    columns: int  # columns of a row, with padding
    in_range: int  # rows (a power of two) whose product by columns stays in the range of the type
    options: dict[str, Any]  # compile-time options of both kernels


def propagate(problem: Problem) -> Beliefs:
    """Run belief propagation for tensors on a CUDA device.

    Models with more than ``MOST_COLUMNS`` visible units use the reference in torch.
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
    """Return options for small tiles of float32, which are loaded before they are needed."""
    rows = min(most_rows, max(1, _WIDE_TILE // width))
    warps = max(1, min(_MOST_WARPS, rows * width // _WIDE_WARP))
    # A multiprocessor holds only one of the largest programs, so these may use more registers.
    registers = _WIDE_REGISTERS[in_odds] if warps < _MOST_WARPS else _MOST_REGISTERS
    return {"ROWS": rows, "num_warps": warps, "maxnreg": registers, "STAGES": _STAGES}


def _at_once(width: int, most_rows: int, itemsize: int, simple: bool) -> dict[str, Any]:
    """Return options for larger tiles, which are loaded when they are needed."""
    # Tiles of a single row of odds in float64 took 8 to 25 times as long on an H200.
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
        # Fill the values on the device, because a copy from the CPU would wait.
        settings=torch.cat([weight.new_full((1,), value) for value in (problem.tol, problem.damping)]),
    )
    _iterate(problem, form, state)
    return _beliefs(problem, form, state)


def _as_rows(values: Tensor, form: _Form) -> Tensor:
    """Convert log-odds (..., visible, hidden) to a padded row for each hidden unit."""
    rows = pad(values.mT, (0, form.columns - values.shape[-2])).contiguous()
    return rows.exp_() if form.in_odds else rows


def _wide(rows: Tensor, form: _Form) -> Tensor:
    """Convert rows of weights to odds or log-odds, padded to whole tiles; loads then need no mask."""
    height, width = form.options["ROWS"], form.options["COLUMNS"]
    filled = pad(rows, (0, width - rows.shape[1], 0, -len(rows) % height)).contiguous()
    return filled.exp_() if form.in_odds else filled


def _iterate(problem: Problem, form: _Form, state: State) -> None:
    """Run iterations until no message changes; ``state`` is changed in place."""
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
        # The first iteration without initial messages ignores the visible units, and proves nothing.
        proven = iteration > 0 or problem.start is not None
        constants: dict[str, Any] = {"PROVEN": proven} | options
        program = iterate[grid](*numbers, **constants)
        if proven and program is not None:
            # Bind the arguments once, because this takes the CPU longer than an iteration the GPU.
            launch = partial(program[grid], *numbers, *(constants[name] for name in _CONSTANTS))


def _beliefs(problem: Problem, form: _Form, state: State) -> Beliefs:
    """Compute the requested outputs from the last messages."""
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
        # More warps than for an iteration, because this kernel needs more registers.
        "num_warps": min(_MOST_WARPS, 2 * form.options["num_warps"]),
        "maxnreg": _MOST_REGISTERS,
    }
    conclude[(groups * tiles,)](state, sums, batch, num_hidden, num_columns, groups, **options)
    dtype, num_visible = problem.visible.dtype, problem.visible.shape[1]
    fields, pairs = state.fields[:, :num_visible], sums.row_values.sum(1)
    if form.in_odds:
        # The values of the rows contain the messages, which are subtracted here.
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
