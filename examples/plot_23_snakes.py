"""
Snakes in a grid
================

The cells of a snake show where the next cell lies, and ask for their number from the head. No cell knows the
number alone: a graph of neighbouring cells with features of each pair does.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.estimators import GridClassifier

STEPS = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])


def snake(random, length=6, side=7):
    """The image, one of four directions or the ground for each cell, and the numbers of the cells."""
    while True:
        path, turns = [random.integers(side, size=2)], []
        while len(path) <= length:
            turn = random.integers(4)
            cell = path[-1] + STEPS[turn]
            if (cell < 0).any() or (cell >= side).any() or any((cell == each).all() for each in path):
                break
            path.append(cell)
            turns.append(turn)
        if len(path) > length:
            break
    image, labels = np.zeros((side, side, 5)), np.zeros((side, side), int)
    image[..., 4] = 1
    for number, ((row, column), turn) in enumerate(zip(path[:length], turns, strict=True)):
        image[row, column], labels[row, column] = np.eye(5)[turn], number + 1
    return image, labels


random = np.random.default_rng(0)
X, y = zip(*(snake(random) for _ in range(50)), strict=True)

# %%
right = {}
for name, settings in {
    "cells alike": {},
    "pairs with features": {"edge_features": True, "directed": True},
}.items():
    model = GridClassifier(0.3, tol=0.1, max_iter=8, random_state=0, **settings).fit(X[:40], y[:40])
    found = model.predict(X[40:])
    right[name] = np.mean([np.array_equal(one, other) for one, other in zip(found, y[40:], strict=True)])
    print(f"{name}: {right[name]:.0%} of the snakes are wholly right")

# %%
figure, axes = plt.subplots(1, 3, figsize=(8, 3))
for axis, (title, shown) in zip(
    axes, {"image": X[40].argmax(-1), "found": found[0], "truth": y[40]}.items(), strict=True
):
    axis.imshow(shown, cmap="viridis")
    axis.set_title(title)
    axis.axis("off")
plt.show()
