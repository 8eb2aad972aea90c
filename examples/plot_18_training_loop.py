"""
A neural network in front, in a loop of PyTorch
===============================================

A model maps features to an energy; a loss maps an energy and labels to one number for each example. Both
are differentiable. The training loop is the usual one, and decoding is proven as for other models.
"""

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from lmbm_torch.data import SevenSegment
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.losses import local_hinge
from lmbm_torch.models import SigmoidBeliefNetwork

digits = SevenSegment()
X, Y = torch.from_numpy(digits.train_features), torch.from_numpy(digits.train_labels)
X_test, Y_test = torch.from_numpy(digits.test_features), torch.from_numpy(digits.test_labels)

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
model = SigmoidBeliefNetwork(num_features=64, num_labels=7, encoder=encoder)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
curve = []
for _ in range(40):
    for rows in torch.randperm(len(X)).split(100):
        optimizer.zero_grad()
        loss = local_hinge(model(X[rows]), Y[rows]).mean()
        loss.backward()
        optimizer.step()
    curve.append(loss.item())

# %%
with torch.no_grad():
    found = branch_and_bound.decode_hinge(model(X_test))
print(f"exact match {(found.labels == Y_test).all(1).float().mean():.3f}", end=", ")
print(f"{found.status.exact.float().mean():.0%} of the answers proven best")

# %%
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes.plot(curve)
axes.set(xlabel="epoch", ylabel="hinge loss of the last batch", yscale="log")
plt.show()
