"""
Calibrated probabilities
========================

Training with the hinge loss gives good label sets and poor probabilities. ``calibrate=True`` fits a scale
of the scores on held-out folds: of the answers with a probability of 80 %, about 80 % are right.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier

digits = SevenSegment()
X, Y = digits.train_features, digits.train_labels
X_test, Y_test = digits.test_features, digits.test_labels

figure, axes = plt.subplots(figsize=(4, 3.8), layout="constrained")
axes.plot([0, 1], [0, 1], ":", color="0.6")
for name, calibrate in (("as trained", False), ("calibrated", True)):
    model = LMSBNClassifier(C=0.3, calibrate=calibrate, decoder="exact_match", random_state=0).fit(X, Y)
    answers = model.predict(X_test)
    confidence = np.exp(model.log_prob(X_test, answers))
    right = (answers == Y_test).all(1)
    groups = np.array_split(np.argsort(confidence), 8)
    axes.plot([confidence[g].mean() for g in groups], [right[g].mean() for g in groups], "o-", label=name)
    print(f"{name:11} mean log P of the true labellings {model.log_prob(X_test, Y_test).mean():.3f} nats")
axes.set(xlabel="probability of the answer", ylabel="how often it is right")
axes.legend(frameon=False)
plt.show()
