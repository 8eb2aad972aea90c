"""
A table of your own
===================

A data frame with columns of features and columns of labels (0 or 1) is enough. The labels here are the
segments *a* to *g* of a display that shows a handwritten digit.
"""

# %%
import pandas as pd

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.viz.dependencies import dependency_heatmap

digits, labels = SevenSegment(), list("abcdefg")
table = pd.DataFrame(digits.features, columns=digits.feature_names)  # yours: pd.read_csv("mine.csv")
table[labels] = digits.labels.astype(int)
train, test = table.iloc[digits.train], table.iloc[digits.test]
X, X_test = train.drop(columns=labels), test.drop(columns=labels)

model = LMSBNClassifier(C=0.3, random_state=0).fit(X, train[labels])
print(f"{model.score(X_test, test[labels]):.1%} of the label vectors are right in every label")

# %%
# The names of the labels that are on, or the three best label sets of each row with their losses. The
# ``bound`` is proven: no other label set has a smaller loss.
print(model.predict_names(X_test)[:3])
decoding = model.decode(X_test, top_k=3)
print("costs", decoding.objective[0].round(decimals=3).tolist(), "proven:", bool(decoding.status.exact.all()))

# %%
# Training has a certificate, too: the relative duality gap bounds the distance to the optimum.
print(f"relative duality gap {model.duality_gap_:.1e} after {model.n_iter_} passes")

# %%
# Each row shows the weights of the earlier labels in the score of one label.
dependency_heatmap(model.parent_coef_, labels, model.ordering_)
