"""Shape annotations such as ``Float[Tensor, "batch labels"]``.

They are documentation for readers and type checkers, and the tests enforce them through jaxtyping's import
hook. The library itself never checks an annotation, so jaxtyping stays a development dependency.

Axis vocabulary: ``batch labels features cliques visible hidden``, ``length steps states`` of chains, and
``*samples`` for any number of leading axes.
"""

from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:
        # Takes a type and a text alike, so that modules can name a type that they use often.
        Bool = Float = Int = Shaped = Annotated

__all__ = ["Bool", "Float", "Int", "Shaped"]
