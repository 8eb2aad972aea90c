"""
Cleaning a picture
==================

Each pixel has one of five greys, and neighbours mostly agree: a Potts model. Dual ascent finds the best
picture and says whether it is proven; belief propagation says how sure each pixel is.
"""

# %%
import numpy as np
import torch

from lmbm_torch import FactorEnergy
from lmbm_torch.inference.graphs import belief_propagation, dual_ascent
from lmbm_torch.viz.images import image_grid

SIDE, STATES, NOISE = 24, 5, 0.4
rows, columns = np.mgrid[:SIDE, :SIDE]
clean = 2 * (np.hypot(rows - 8, columns - 9) < 6) + (rows + columns > 28) + (columns > 15)
noise = np.random.default_rng(0).random((2, SIDE, SIDE))
noisy = np.where(noise[0] < NOISE, (noise[1] * STATES).astype(int), clean)

# %%
cells = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
pairs = (cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:])
edges = torch.from_numpy(np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs]))
kept = np.log((1 - NOISE) * STATES / NOISE + 1)
unary = kept * torch.nn.functional.one_hot(torch.from_numpy(noisy).view(1, -1), STATES).double()
energy = FactorEnergy.from_edges(unary, edges, 1.2 * torch.eye(STATES).double())
best = dual_ascent.branch_and_bound(energy, node_limit=200)
beliefs = belief_propagation.marginals(energy, num_iters=100, tol=1e-4)
print(f"proven: {best.status.exact.item()}, gap {best.status.residual.item():.3f}")
cleaned = best.labels.view(SIDE, SIDE).numpy()
print(f"wrong pixels: {(noisy != clean).mean():.1%} before, {(cleaned != clean).mean():.1%} after")

# %%
sure = beliefs.states.amax(-1).view(SIDE, SIDE)
pictures = [torch.from_numpy(each) / (STATES - 1) for each in (clean, noisy, cleaned)]
image_grid(torch.stack([*pictures, sure]))
