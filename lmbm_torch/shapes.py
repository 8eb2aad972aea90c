"""Shape annotations such as ``Float[Tensor, "batch labels"]``. This module is internal and may change.

Annotations document shapes for readers and type checkers. Only the tests check annotations, by jaxtyping's
import hook: jaxtyping is needed for development only.

Names of axes: ``batch labels features cliques visible hidden``; for chains ``length steps states``;
``*samples`` stands for any number of leading axes.

Frequent annotations have names. ``Known``: 0 or 1 for given labels and NaN for free labels. ``Labels``:
labellings, with samples in leading axes. ``Scores``: a number for each labelling. ``LabelScores``: a number
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
        # Annotated accepts a type and a text, too, so that Float[Tensor, "batch"] works without jaxtyping.
        Bool = Float = Int = Shaped = Annotated

Known = Shaped[Tensor, "batch labels"]
Labels = Shaped[Tensor, "*samples #batch labels"]
Scores = Float[Tensor, "*samples _batch"]
LabelScores = Float[Tensor, "*samples _batch labels"]

__all__ = []
