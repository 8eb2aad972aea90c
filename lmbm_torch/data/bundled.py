"""The images of handwritten digits that scikit-learn brings along."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.shapes import Float, Int


def bundled_digits() -> tuple[Float[np.ndarray, "1797 64"], Int[np.ndarray, " 1797"]]:
    """Grey values 0 … 16 of 8 × 8 pixels, row by row, and the digit that each image shows."""
    from sklearn.datasets import load_digits

    # Arrays, whatever a type checker makes of scikit-learn's ``as_frame``.
    bundled: Any = load_digits(return_X_y=True)
    return bundled
