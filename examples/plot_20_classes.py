"""
Classes with a kernel, by two solvers
=====================================

One label with several values is the smallest structured problem. Kernel logistic regression gives
probabilities, the multi-class SVM gives margins. Both trainings end at a small duality gap.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from lmbm_torch.estimators import KernelLogisticRegression, MultiClassSVM

X, y = make_moons(200, noise=0.2, random_state=0)
X, y = np.concatenate([X, X + np.array([0, 1.6])]), np.concatenate([y, y + 2])
grid = np.stack(np.meshgrid(np.linspace(-1.6, 2.6, 90), np.linspace(-1.2, 3.2, 90)), -1).reshape(-1, 2)

models = {
    "kernel logistic regression": KernelLogisticRegression(C=10.0, gamma=2.0, random_state=0),
    "multi-class SVM": MultiClassSVM(C=1.0, kernel="rbf", gamma=2.0, random_state=0),
}
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for axes, (name, model) in zip(panels, models.items(), strict=True):
    model.fit(X, y)
    axes.contourf(*grid.T.reshape(2, 90, 90), model.predict(grid).reshape(90, 90), levels=3, alpha=0.3)
    axes.scatter(*X.T, c=y, s=6)
    axes.set(title=f"{name}\nrelative gap {model.duality_gap_:.0e}", xticks=[], yticks=[])
plt.show()
