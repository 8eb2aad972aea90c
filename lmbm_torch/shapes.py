"""Shape annotations such as ``Float[Tensor, "batch labels"]``. This module is internal and may change.

Annotations are documentation for readers and type checkers; the tests enforce annotations through jaxtyping's
import hook. The library never checks an annotation: jaxtyping stays a development dependency.

Axis vocabulary: ``batch labels features cliques visible hidden``, ``length steps states`` of chains, and
``*samples`` for any number of leading axes.

Frequent annotations have names: ``Known``, {0, 1} for given labels and NaN for free labels; ``Labels``,
labellings with samples in leading axes; ``Scores``, a number for each labelling; ``LabelScores``, a number
for each label of a labelling.
"""

from typing import TYPE_CHECKING, Annotated

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:
        # Takes a type or a text, so that modules can name frequent types.
        Bool = Float = Int = Shaped = Annotated

Known = Shaped[Tensor, "batch labels"]
Labels = Shaped[Tensor, "*samples #batch labels"]
Scores = Float[Tensor, "*samples _batch"]
LabelScores = Float[Tensor, "*samples _batch labels"]

__all__ = []
