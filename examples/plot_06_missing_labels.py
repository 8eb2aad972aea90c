"""
Training with missing labels
============================

A missing label is not a 0. Missing labels are NaN in the label matrix. The belief network completes missing
labels by its own predictions, in turns with training.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier

digits = SevenSegment()
X, Y = digits.train_features[:300], digits.train_labels[:300]
random = np.random.default_rng(0)


def exact_match(labels):
    return (
        LMSBNClassifier(C=0.3, random_state=0).fit(X, labels).score(digits.test_features, digits.test_labels)
    )


shares = [0.0, 0.2, 0.4, 0.6]
scores = {"missing (NaN)": [], "taken for 0": []}
for share in shares:
    is_missing = random.random(Y.shape) < share
    scores["missing (NaN)"].append(exact_match(np.where(is_missing, np.nan, Y)))
    scores["taken for 0"].append(exact_match(np.where(is_missing, 0.0, Y)))

# %%
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, values in scores.items():
    axes.plot(shares, values, "o-", label=name)
axes.set(xlabel="share of the labels that nobody gave", ylabel="exact match", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()
