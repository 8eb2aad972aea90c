"""
A path of penalties
===================

Cross-validation chooses the penalty along a path of values of C. Each training starts from the dual
solution of the value before, so that a whole path costs little more than its most expensive value.
"""

# %%
import matplotlib.pyplot as plt

from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMSBNClassifier, LMSBNClassifierCV

digits = SevenSegment()
model = LMSBNClassifierCV(
    LMSBNClassifier(random_state=0), Cs=[0.003, 0.01, 0.03, 0.1, 0.3, 1.0], random_state=0
)
model.fit(digits.train_features, digits.train_labels)
print(f"chosen C = {model.C_:g}, exact match {model.score(digits.test_features, digits.test_labels):.3f}")

# %%
mean, deviation = model.scores_.mean(0), model.scores_.std(0)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.semilogx(model.Cs_, mean, "o-")
axes.fill_between(model.Cs_, mean - deviation, mean + deviation, alpha=0.2)
axes.axvline(model.C_, color="0.5", linestyle=":")
axes.set(xlabel="C", ylabel="exact match of the instances held out")
plt.show()
