"""
Log partition functions between two bounds
==========================================

Without enumeration, the log partition function can still be bounded: mean field gives a lower bound, tree-
reweighted belief propagation an upper bound. Belief propagation lies between the two as a rule, but without
a guarantee.
"""

# %%
import matplotlib.pyplot as plt
import torch

from lmbm_torch.energies import PairwiseEnergy, to_factors
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.graphs import belief_propagation, tree_reweighted
from lmbm_torch.inference.messages import mean_field


def machine(coupling, labels=10, instances=20):
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(instances, labels, generator=generator, dtype=torch.float64) / 2
    weights = coupling * torch.randn(labels, labels, generator=generator, dtype=torch.float64) / labels**0.5
    return PairwiseEnergy(unary, weights.triu(1) + weights.triu(1).T)


couplings = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0]
routines = {
    "tree-reweighted (never below)": lambda energy: tree_reweighted.marginals(to_factors(energy)),
    "belief propagation": lambda energy: belief_propagation.marginals(to_factors(energy)),
    "mean field (never above)": mean_field.marginals,
}
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.axhline(0, color="0.5", linewidth=1)
for name, routine in routines.items():
    gaps = torch.stack(
        [routine(machine(c)).log_partition - exact.log_partition(machine(c)) for c in couplings]
    )
    axes.plot(couplings, gaps.mean(1), "o-", label=name)
    axes.fill_between(couplings, gaps.amin(1), gaps.amax(1), alpha=0.15)
axes.set(xlabel="size of the couplings", ylabel="log Z, above the exact one")
axes.legend(frameon=False)
plt.show()
