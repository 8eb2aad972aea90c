"""
A Boltzmann machine needs no order
==================================

Sigmoid belief networks need an order of the labels. Boltzmann machines need none: each pair of labels
shares one coupling. Training solves the dual problem, and the couplings show which labels go together.
"""

# %%
from lmbm_torch.data import SevenSegment
from lmbm_torch.estimators import LMBMClassifier
from lmbm_torch.viz.dependencies import coupling_heatmap

digits = SevenSegment()
model = LMBMClassifier(C=0.03, random_state=0)
model.fit(digits.train_features, digits.train_labels)
print(f"exact match {model.score(digits.test_features, digits.test_labels):.3f}", end=", ")
print(f"relative duality gap {model.duality_gap_:.1e}")

# %%
# Given the image, red pairs of segments are lit together, blue pairs exclude each other.
energy = model.energy(digits.test_features[:1])
coupling_heatmap(energy.pairwise, digits.label_names)
