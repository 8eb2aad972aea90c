"""
Beliefs compared with exact marginals
=====================================

Matrix belief propagation approximates all marginals of a restricted Boltzmann machine by a few matrix
products. With sixteen visible units the exact marginals can be enumerated: the figure shows the errors of
belief propagation and of mean field.
"""

# %%
import matplotlib.pyplot as plt
import torch

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp, mean_field


def machine(strength, instances=50, visible=16, hidden=12):
    generator = torch.Generator().manual_seed(0)
    coupling = strength * torch.randn(visible, hidden, generator=generator)
    return BipartiteEnergy(  # centred, so that no unit is decided by its own field
        visible=torch.randn(instances, visible, generator=generator) - coupling.sum(1) / 2,
        hidden=torch.randn(instances, hidden, generator=generator) - coupling.sum(0) / 2,
        coupling=coupling,
    )


strengths = [0.1, 0.2, 0.5, 1.0, 2.0, 4.0]
routines = {"belief propagation": matrix_bp.marginals, "mean field": mean_field.marginals}
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, routine in routines.items():
    errors = [
        (routine(machine(s), num_iters=100).visible - exact.marginals(machine(s)).visible).abs().mean()
        for s in strengths
    ]
    axes.loglog(strengths, errors, "o-", label=name)
axes.set(xlabel="size of the couplings", ylabel="mean error of P(v = 1)")
axes.legend(frameon=False)
plt.show()

# %%
# The status of each answer says whether the messages converged: often not with strong random couplings.
for strength in strengths:
    status = matrix_bp.marginals(machine(strength), num_iters=100).status
    print(f"couplings of size {strength:3}: {status.converged.float().mean():4.0%} converged")
