"""
Any classifiers, decoded jointly
================================

A chain of forests, boosted trees or neural networks is a joint distribution if its members return
probabilities. scikit-learn decodes such a chain greedily. ``ProbabilisticClassifierChain`` searches for the
most probable label set, with a proof.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import ProbabilisticClassifierChain

digits = SevenSegment()
X, Y = digits.train_features[:250], digits.train_labels[:250].astype(int)
X_test, Y_test = digits.test_features[:400], digits.test_labels[:400].astype(int)

forest = RandomForestClassifier(40, min_samples_leaf=2, random_state=0)
models = {
    "alone": MultiOutputClassifier(forest),
    "greedy chain": ClassifierChain(forest),
    "joint": ProbabilisticClassifierChain(forest),
}
scores = {}
for name, model in models.items():
    answers = np.asarray(model.fit(X, Y).predict(X_test))
    scores[name] = (answers == Y_test).all(1).mean()

# %%
figure, axes = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
bars = axes.bar(list(scores), list(scores.values()), color=["0.7", "0.7", "#0072b2"])
axes.bar_label(bars, fmt="%.3f")
axes.set(ylabel="exact match", ylim=(0, 1))
plt.show()

# %%
decoding = models["joint"].decode(X_test[:100])
print(f"{decoding.status.exact.double().mean():.0%} of the joint answers are proven most probable")
