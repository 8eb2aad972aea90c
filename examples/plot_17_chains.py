"""
Sequences
=========

A number is a sequence of digits with one noisy image each, and some digits follow others more often.
Conditional random fields and max-margin Markov networks read the number as a whole.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import digit_numbers
from lmbm_torch.estimators import ChainCRF, ChainSVM
from lmbm_torch.estimators.chains.baselines import IndependentPositions
from lmbm_torch.estimators.common.baselines import independent_svm
from lmbm_torch.viz.quality import bar_chart

data = digit_numbers(80)
train, test = data.within(0), data.within(1)
random = np.random.default_rng(0)
X, X_test = (
    [np.clip(images + 0.45 * random.standard_normal(images.shape), 0, 1) for images in part.features]
    for part in (train, test)
)

longest = max(range(len(X_test)), key=lambda number: len(X_test[number]))
figure, grid = plt.subplots(1, len(X_test[longest]), figsize=(8, 1.4), layout="constrained")
for axes, image, digit in zip(grid, X_test[longest], test.labels[longest], strict=True):
    axes.imshow(image.reshape(8, 8), cmap="gray_r")
    axes.set(xticks=[], yticks=[], title=digit)
plt.show()

# %%
models = {
    "each digit alone": IndependentPositions(independent_svm(C=0.1)),
    "conditional random field": ChainCRF(C=1.0),
    "max-margin Markov network": ChainSVM(C=1.0, random_state=0),
}
for model in models.values():
    model.fit(X, train.labels)


def whole_numbers(model):
    return np.mean([(p == y).all() for p, y in zip(model.predict(X_test), test.labels, strict=True)])


# %%
bar_chart(
    {
        "digits right": {name: model.score(X_test, test.labels) for name, model in models.items()},
        "numbers right": {name: whole_numbers(model) for name, model in models.items()},
    }
)
