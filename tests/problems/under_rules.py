"""Four labels, and rules over them, for classifiers."""

from __future__ import annotations

from sklearn.datasets import make_multilabel_classification

X, Y = make_multilabel_classification(80, 8, n_classes=4, n_labels=2, random_state=0)
NAMES = ["sun", "rain", "city", "field"]
RULES = ["sun -> not rain", "at_most_one(city, field)", "rain -> city or field"]
