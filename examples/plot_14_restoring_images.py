"""
Restoring images
================

Sixty-four outputs depend on each other: the clean pixels of digits, of which one in ten was flipped. The
hidden units of a conditional RBM represent strokes. Training and prediction use the same belief
propagation.
"""

# %%
import torch

from lmbm_torch.data.corruptions import Flip
from lmbm_torch.data.images import digits, restoration
from lmbm_torch.estimators import ConditionalRBMClassifier
from lmbm_torch.viz.images import image_rows

data = restoration(digits(), Flip(0.1))
model = ConditionalRBMClassifier(
    C=30.0, num_hidden=32, objective="mle_bp", max_iter=10, learning_rate=0.05, random_state=0
)
model.fit(data.train_features[:600], data.train_labels[:600])

# %%
cleaned = model.predict(data.test_features)
before, after = (abs(images - data.test_labels).mean() for images in (data.test_features, cleaned))
print(f"wrong pixels: {before:.1%} before, {after:.1%} after")

# %%
image_rows(
    {
        name: torch.as_tensor(images[:10]).reshape(-1, 8, 8)
        for name, images in (
            ("noisy", data.test_features),
            ("restored", cleaned),
            ("clean", data.test_labels),
        )
    }
)
