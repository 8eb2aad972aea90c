"""
Labels alone, in a chain, and together
======================================

Seven segments of a display have 128 combinations, of which ten are digits. Classifiers that decide each
segment alone often show none of the ten. A greedy classifier chain keeps its first mistake. Joint decoding
compares whole label sets.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.estimators.common.baselines import classifier_chain, independent_svm
from lmbm_torch.viz.images import segment_displays

digits = SevenSegment()
X, Y = digits.train_features, digits.train_labels.astype(int)
X_test, Y_test = digits.test_features, digits.test_labels.astype(int)

models = {
    "alone": independent_svm().set_params(estimator__C=0.1),
    "greedy chain": classifier_chain().set_params(estimator__C=0.1),
    "together": LMSBNClassifier(C=0.3, random_state=0),
}
answers = {name: model.fit(X, Y).predict(X_test).astype(int) for name, model in models.items()}

# %%
# The share of images with all labels right, and the share of answers that are digits.
codes = SevenSegment.codes().astype(int)
right = [(answer == Y_test).all(1).mean() for answer in answers.values()]
shown = [(answer[:, None] == codes).all(2).any(1).mean() for answer in answers.values()]

figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
place = np.arange(len(models))
axes.bar(place - 0.2, right, 0.4, label="all segments right")
axes.bar(place + 0.2, shown, 0.4, label="shows a digit")
axes.set(xticks=place, xticklabels=models, ylim=(0, 1))
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
# Some of the images that the first model misreads; wrong segments have another colour.
some = np.flatnonzero((answers["alone"] != Y_test).any(1))[:10]
drawn = {name: answers[name][some] for name in ("alone", "together")}
segment_displays(X_test[some].reshape(-1, 8, 8), Y_test[some], drawn)
