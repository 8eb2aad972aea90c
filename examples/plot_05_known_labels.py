"""
When some labels are known
==========================

A person has confirmed a tag, or a sensor reports one of the outputs: the other labels are decoded given the
known labels. With more known labels, more of the remaining labels are right.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier

digits = SevenSegment()
X, Y = digits.train_features[:60], digits.train_labels[:60]  # few rows, so that known labels help
X_test, Y_test = digits.test_features, digits.test_labels
networks = {
    "labels alone": LMSBNClassifier(C=0.3, degree=1, random_state=0).fit(X, Y),
    "network": LMSBNClassifier(C=0.3, random_state=0).fit(X, Y),
}

# %%
# ``known`` holds 0 and 1 for known labels, and NaN for free labels.
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
