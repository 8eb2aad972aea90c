"""
Decode for the measure that counts
==================================

The most probable label set is best for exact match, but not for F1 or the Hamming loss. A belief network is
a joint distribution, so each measure has a decoder of its own: the answer of largest expected value.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_multilabel_classification

from lmbm_torch import metrics
from lmbm_torch.estimators import LMSBNClassifier

X, Y = make_multilabel_classification(900, n_features=30, n_classes=8, n_labels=2, random_state=3)
X, X_test, Y, Y_test = X[:500] / X.std(), X[500:] / X.std(), Y[:500], Y[500:]

decoders = ("exact_match", "hamming", "f1", "jaccard")
measures = {
    "exact match": metrics.exact_match,
    "1 − Hamming loss": lambda answers, labels: 1 - metrics.hamming_loss(answers, labels),
    "F1 of each row": metrics.sample_f1,
    "Jaccard index of each row": metrics.jaccard_index,
}
target = torch.as_tensor(Y_test)
scores = np.empty((len(decoders), len(measures)))
for row, decoder in enumerate(decoders):
    model = LMSBNClassifier(C=1.0, calibrate=True, decoder=decoder, random_state=0).fit(X, Y)
    answers = torch.as_tensor(model.predict(X_test))
    scores[row] = [measure(answers, target) for measure in measures.values()]

# %%
# Rows are decoders, columns are measures; the best value of each column is bold.
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.imshow((scores - scores.min(0)) / np.ptp(scores, axis=0), cmap="Blues", vmax=2, aspect="auto")
for (row, column), value in np.ndenumerate(scores):
    weight = "bold" if row == scores[:, column].argmax() else "normal"
    axes.text(column, row, f"{value:.3f}", ha="center", va="center", weight=weight)
axes.set_xticks(range(len(measures)), measures, rotation=20)
axes.set_yticks(range(len(decoders)), decoders)
axes.set_ylabel("decoder")
plt.show()
