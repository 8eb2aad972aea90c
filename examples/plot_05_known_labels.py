"""
When some labels are known
==========================

A person has confirmed a tag, or a sensor tells one of the outputs: the others are decoded given what is
known. The more labels are given, the more of the rest come out right.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier

digits = SevenSegment()
X, Y = digits.train_features[:60], digits.train_labels[:60]  # few, so that there is something to gain
X_test, Y_test = digits.test_features, digits.test_labels
networks = {
    "labels alone": LMSBNClassifier(C=0.3, degree=1, random_state=0).fit(X, Y),
    "network": LMSBNClassifier(C=0.3, random_state=0).fit(X, Y),
}

# %%
# ``known`` holds 0, 1, or NaN for what is open.
random = np.random.default_rng(0)
hidden_order = random.permuted(np.tile(np.arange(7), (len(Y_test), 1)), axis=1)


def right_among_open(model, count):
    """Of the labels that are open when ``count`` of seven are given, the share that is right."""
    is_open = hidden_order >= count
    known = np.where(is_open, np.nan, Y_test)
    return (model.predict(X_test, known=known) == Y_test)[is_open].mean()


figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, model in networks.items():
    axes.plot(range(7), [right_among_open(model, count) for count in range(7)], "o-", label=name)
axes.set(xlabel="labels that are given, of seven", ylabel="right among the others")
axes.legend(frameon=False)
plt.show()
