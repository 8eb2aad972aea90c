"""
Answers that obey rules
=======================

Answers can be held to rules: the best of all label sets that obey the rules is returned, with a
certificate. Rules guarantee; they do not teach: a belief network decoded jointly obeys most of the rules
without being told, even after training on forty images.
"""

# %%
from collections import Counter

import matplotlib.pyplot as plt
import pandas as pd

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import ConstrainedClassifier, LMSBNClassifier

digits, codes = SevenSegment(), SevenSegment.codes()
labels = pd.DataFrame(digits.labels, columns=list("abcdefg"))


def literals():
    """Each segment lit and not lit, with the digits of which it is true."""
    for name, column in zip(labels, codes.T, strict=True):
        yield name, column > 0
        yield f"not {name}", column == 0


# All implications between two segments that hold for every digit: "e -> d", "not b -> f", …
rules = [
    f"{one} -> {other}"
    for one, is_one in literals()
    for other, is_other in literals()
    if one[-1] != other[-1] and is_other[is_one].all()
]
print(len(rules), "rules, such as", rules[:4])

few = digits.train[:40]
base = LMSBNClassifier(C=0.3, random_state=0)
model = ConstrainedClassifier(base, rules).fit(digits.features[few], labels.iloc[few])
free = base.fit(digits.features[few], labels.iloc[few])

# %%
# The rules that changed answers, and whether the changed answers are right.
answers, before = model.predict(digits.test_features), free.predict(digits.test_features)
print(f"{(answers != before).any(1).sum()} of {len(answers)} answers were changed by rules")
print(f"exact match {(before == digits.test_labels).all(1).mean():.3f} without,", end=" ")
print(f"{(answers == digits.test_labels).all(1).mean():.3f} with rules")

# %%
counts = Counter(str(rule) for found in model.binding_rules(digits.test_features) for rule in found)
names, changed = zip(*counts.most_common(8)[::-1], strict=True)
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
axes.barh(names, changed)
axes.set(xlabel="answers that the rule changed")
plt.show()
