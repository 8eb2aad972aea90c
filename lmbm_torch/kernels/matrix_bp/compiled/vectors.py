"""Vector registers inside compiled code, for loops that LLVM's vectoriser compiles poorly.

A vector holds 64 bytes of numbers; on narrower registers LLVM uses several registers. Vectors of the same
type add, subtract, multiply and divide lane by lane; a product and a following sum may be fused. Vectors are
read and written through a :func:`pointer` and an offset: with arrays, numba would count references in the
loops.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import lower_builtin, models, register_model, type_callable

from lmbm_torch.kernels.matrix_bp.compiled.state import LINE

# numba supplies the first argument of a function under this decorator, so callers leave the argument out:
# type checkers cannot know.
intrinsic: Any = extending.intrinsic


class Vector(types.Type):
    """The type of a vector in compiled code."""

    def __init__(self, dtype: Any):
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")

    @property
    def lanes(self) -> int:
        return 8 * LINE // self.dtype.bitwidth


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.VectorType(dmm[fe_type.dtype].get_value_type(), fe_type.lanes))


def _binary(operation: Any, floating: str, whole: str) -> None:
    """Register the instructions of ``operation`` for two vectors."""

    @type_callable(operation)
    def _type(context):
        return lambda one, other: one if isinstance(one, Vector) and one == other else None

    @lower_builtin(operation, Vector, Vector)
    def _lower(context, builder, sig, args):
        if isinstance(sig.return_type.dtype, types.Integer):
            return getattr(builder, whole)(*args)
        return getattr(builder, floating)(*args, flags=("contract",))


for _operations, _floating, _whole in (
    ((operator.add, operator.iadd), "fadd", "add"),
    ((operator.sub, operator.isub), "fsub", "sub"),
    ((operator.mul, operator.imul), "fmul", "mul"),
    ((operator.truediv, operator.itruediv), "fdiv", "sdiv"),
):
    for _operation in _operations:
        _binary(_operation, _floating, _whole)


@intrinsic
def pointer(typingctx, array):
    """Return the start of a C-contiguous array, without counting references.

    The caller keeps the array alive.
    """
    if array.layout != "C":
        return None

    def generate(context, builder, sig, args):
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def lanes(typingctx, address):
    """Return how many numbers of the address's type a vector has."""
    count = Vector(address.dtype).lanes
    return types.uint64(address), lambda context, builder, sig, args: ir.Constant(ir.IntType(64), count)


@intrinsic
def load(typingctx, address, offset):
    """Load the vector that begins at an unsigned offset."""
    kind = Vector(address.dtype)

    def generate(context, builder, sig, args):
        place = builder.bitcast(builder.gep(args[0], [args[1]]), context.get_value_type(kind).as_pointer())
        return builder.load(place, align=address.dtype.bitwidth // 8)

    return kind(address, types.uint64), generate


@intrinsic
def store(typingctx, address, offset, value):
    """Write a vector to the place read by :func:`load`."""

    def generate(context, builder, sig, args):
        place = builder.bitcast(builder.gep(args[0], [args[1]]), args[2].type.as_pointer())
        builder.store(args[2], place, align=address.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(address, types.uint64, value), generate


@intrinsic
def ones(typingctx, address):
    """Return a vector of ones of the address's type."""
    kind = Vector(address.dtype)

    def generate(context, builder, sig, args):
        return ir.Constant(context.get_value_type(kind), [1.0] * kind.lanes)

    return kind(address), generate


@intrinsic
def broadcast(typingctx, value):
    """Return a vector of copies of a number."""
    kind = Vector(value)

    def generate(context, builder, sig, args):
        vector = context.get_value_type(kind)
        one = builder.insert_element(
            ir.Constant(vector, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), kind.lanes), [0] * kind.lanes)
        return builder.shuffle_vector(one, one, lanes)

    return kind(value), generate


def _choice(comparison: str):
    @intrinsic
    def choose(typingctx, one, other):
        def generate(context, builder, sig, args):
            return builder.select(builder.fcmp_ordered(comparison, *args), *args)

        return one(one, other), generate

    return choose


least, greatest = _choice("<"), _choice(">")


@intrinsic
def any_above(typingctx, one, other):
    """Return whether a lane of ``one`` is above the lane of ``other``, or either is NaN."""

    def generate(context, builder, sig, args):
        above = builder.fcmp_unordered(">", *args)
        bits = builder.bitcast(above, ir.IntType(above.type.count))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(one, other), generate


def _reduction(name: str, start: float):
    @intrinsic
    def reduce(typingctx, vector):
        def generate(context, builder, sig, args):
            element, kind = args[0].type.element, args[0].type
            floating = isinstance(vector.dtype, types.Float)
            suffix = f"v{kind.count}{element.intrinsic_name}"
            operands = [ir.Constant(element, start), args[0]] if floating else [args[0]]
            reduction = f"llvm.vector.reduce.{'f' if floating else ''}{name}.{suffix}"
            function = builder.module.globals.get(reduction) or ir.Function(
                builder.module, ir.FunctionType(element, [operand.type for operand in operands]), reduction
            )
            return builder.call(function, operands, fastmath=("reassoc",) if floating else ())

        return vector.dtype(vector), generate

    return reduce


sum_of_lanes = _reduction("add", -0.0)
product_of_lanes = _reduction("mul", 1.0)


def _integer(dtype: types.Float) -> tuple[types.Integer, int, int]:
    """Return the integer type of a float type's size, the fraction's bits, and the exponent's bias."""
    return {types.float32: (types.int32, 23, 127), types.float64: (types.int64, 52, 1023)}[dtype]


@intrinsic
def exponents(typingctx, vector):
    """Return ⌊log₂ x⌋ of positive normal numbers, as integers of equal size."""
    whole, fraction, bias = _integer(vector.dtype)
    kind = Vector(whole)

    def generate(context, builder, sig, args):
        integers = context.get_value_type(kind)
        bits = builder.ashr(builder.bitcast(args[0], integers), integers([fraction] * kind.lanes))
        return builder.sub(bits, integers([bias] * kind.lanes))

    return kind(vector), generate


@intrinsic
def mantissas(typingctx, vector):
    """Return x / 2^exponent(x), in [1, 2), of positive normal numbers."""
    whole, fraction, bias = _integer(vector.dtype)
    kind = Vector(whole)

    def generate(context, builder, sig, args):
        integers = context.get_value_type(kind)
        bits = builder.bitcast(args[0], integers)
        bits = builder.and_(bits, integers([2**fraction - 1] * kind.lanes))
        bits = builder.or_(bits, integers([bias << fraction] * kind.lanes))
        return builder.bitcast(bits, args[0].type)

    return vector(vector), generate
