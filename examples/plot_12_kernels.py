"""
Kernels
=======

A kernel gives curved boundaries between features. The scores stay linear in the labels, so decoding costs
the same and is proven as for linear models.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.estimators import LMSBNClassifier

random = np.random.default_rng(0)
X = random.uniform(-1, 1, (400, 2))
radius, angle = np.hypot(*X.T), np.arctan2(X[:, 1], X[:, 0])
Y = np.stack([radius < 0.6, np.sin(3 * angle) > 0, (radius < 0.6) ^ (np.sin(3 * angle) > 0)], 1).astype(int)
grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 80)] * 2), -1).reshape(-1, 2)
names = ["near", "petal", "one of the two"]

# %%
# The third label is 1 if exactly one of the other two is.
figure, panels = plt.subplots(2, 3, figsize=(7, 4.6), layout="constrained", sharex=True, sharey=True)
for row, (kernel, C) in zip(panels, (("linear", 1.0), ("rbf", 30.0)), strict=True):
    settings = {"gamma": 5.0} if kernel == "rbf" else {}
    model = LMSBNClassifier(C=C, kernel=kernel, random_state=0, **settings).fit(X[:300], Y[:300])
    shown = model.predict(grid).reshape(80, 80, 3)
    print(f"{kernel:6} exact match {model.score(X[300:], Y[300:]):.2f}")
    for axes, label, name in zip(row, range(3), names, strict=True):
        axes.imshow(shown[..., label], extent=(-1, 1, -1, 1), origin="lower", cmap="Blues", vmax=2)
        axes.scatter(*X[:300].T, c=Y[:300, label], s=4, cmap="coolwarm")
        axes.set(title=f"{name}, {kernel}", xticks=[], yticks=[])
plt.show()
