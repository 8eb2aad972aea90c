"""
A table of your own
===================

A data frame with some columns of features and some of labels, 0 or 1: this is all that is needed. The labels
here are the segments *a* to *g* of a display that shows a handwritten digit.
"""

# %%
import pandas as pd

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.viz import dependency_heatmap

digits, labels = SevenSegment(), list("abcdefg")
table = pd.DataFrame(digits.features, columns=digits.feature_names)  # yours: pd.read_csv("mine.csv")
table[labels] = digits.labels.astype(int)
train, test = table.iloc[digits.train], table.iloc[digits.test]
X, X_test = train.drop(columns=labels), test.drop(columns=labels)

model = LMSBNClassifier(C=0.3, random_state=0).fit(X, train[labels])
print(f"{model.score(X_test, test[labels]):.1%} of the label vectors are right in every label")

# %%
# Names of the labels that are on, or the three best labellings of each row with what they cost. The ``bound``
# is proven: no labelling that is not listed costs less.
print(model.predict_names(X_test)[:3])
decoding = model.decode(X_test, top_k=3)
print("costs", decoding.objective[0].round(decimals=3).tolist(), "proven:", bool(decoding.status.exact.all()))

# %%
# Training ends by a certificate, too: the objective is within this share of the best there is.
print(f"relative duality gap {model.duality_gap_:.1e} after {model.n_iter_} passes")

# %%
# What pulls what: row by row, the weight that a label takes from the labels before it.
dependency_heatmap(model.parent_coef_, labels, model.ordering_)
