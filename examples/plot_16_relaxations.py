"""
When a relaxation is enough
===========================

The linear relaxation bounds the best score of a Boltzmann machine from above. If the solution of the
relaxation is integral, the answer meets the bound and is proven optimal. Otherwise branch and bound
continues. The integrality gap is the ``bound`` of the relaxation minus the ``objective`` of a proven
decoding.
"""

# %%
import matplotlib.pyplot as plt
import torch

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.relaxations import lp_relaxation
from lmbm_torch.inference.search import undirected_branch_and_bound


def machine(coupling, labels=12, instances=30):
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(instances, labels, generator=generator, dtype=torch.float64) / 2
    weights = coupling * torch.randn(labels, labels, generator=generator, dtype=torch.float64) / labels**0.5
    return PairwiseEnergy(unary, weights.triu(1) + weights.triu(1).T)


couplings = [0.1, 0.2, 0.4, 0.8, 1.6]
tight = {"any sign": [], "attractive alone": []}
for coupling in couplings:
    energy = machine(coupling)
    attractive = PairwiseEnergy(energy.unary, energy.pairwise.abs())
    for name, each in zip(tight, (energy, attractive), strict=True):
        tight[name].append(lp_relaxation.decode(each).status.exact.double().mean())

# %%
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, shares in tight.items():
    axes.semilogx(couplings, shares, "o-", label=f"couplings: {name}")
axes.set(xlabel="size of the couplings", ylabel="share that is tight", ylim=(-0.05, 1.05))
axes.legend(frameon=False)
plt.show()

# %%
found = undirected_branch_and_bound.decode(machine(1.6))
print(f"branch and bound: {found.status.exact.double().mean():.0%} proven,", end=" ")
print(f"{found.nodes.double().mean():.0f} nodes on average")
