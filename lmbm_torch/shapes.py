"""Shape annotations such as ``Float[Tensor, "batch labels"]``.

They are documentation for readers and type checkers, and the tests enforce them through jaxtyping's import
hook. The library itself never checks an annotation, so jaxtyping stays a development dependency.

Axis vocabulary: ``batch labels features cliques visible hidden``, ``length steps states`` of chains, and
``*samples`` for any number of leading axes.

Four that recur have names: ``Known``, {0, 1} for labels that are given and NaN for free ones; ``Labels``,
labellings with samples in leading axes; ``Scores``, a number for each of them; ``LabelScores``, a number for
each of their labels.
"""

from typing import TYPE_CHECKING, Annotated

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:
        # Takes a type and a text alike, so that modules can name a type that they use often.
        Bool = Float = Int = Shaped = Annotated

Known = Shaped[Tensor, "batch labels"]
Labels = Shaped[Tensor, "*samples #batch labels"]
Scores = Float[Tensor, "*samples _batch"]
LabelScores = Float[Tensor, "*samples _batch labels"]

__all__ = ["Bool", "Float", "Int", "Known", "LabelScores", "Labels", "Scores", "Shaped"]
