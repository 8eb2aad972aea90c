"""
An energy from logic, without training
======================================

Weighted formulas define a distribution over truth values. Three friends, some of whom smoke: friends of
smokers are likely to smoke, and smoking may cause cancer.
"""

# %%
from itertools import permutations

import matplotlib.pyplot as plt
import torch

from lmbm_torch.energies import Clause, from_markov_logic
from lmbm_torch.inference.enumeration import exact

people = ["Anna", "Bob", "Cleo"]
smokes, cancer = range(3), range(3, 6)
clauses = [Clause(positive=(cancer[i],), negated=(smokes[i],), formula=0) for i in range(3)]
# Anna and Bob are friends, and so are Bob and Cleo.
friends = [pair for pair in permutations(range(3), 2) if set(pair) != {0, 2}]
clauses += [Clause(positive=(smokes[j],), negated=(smokes[i],), formula=1) for i, j in friends]
clauses += [Clause(negated=(atom,), formula=2) for atom in (*smokes, *cancer)]
energy = from_markov_logic(clauses, weights=torch.tensor([1.5, 1.1, 1.0]), num_atoms=6)

# %%
# Probabilities of all six atoms, without and with the knowledge that Anna smokes.
nobody_asked = exact.marginals(energy).labels[0].numpy()
known = torch.full((1, 6), torch.nan)
known[0, smokes[0]] = 1
anna_smokes = exact.marginals(energy, known=known).labels[0].numpy()

figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
names = [f"{who}\n{what}" for what in ("smokes", "has cancer") for who in people]
axes.bar([place - 0.2 for place in range(6)], nobody_asked, 0.4, label="before")
axes.bar([place + 0.2 for place in range(6)], anna_smokes, 0.4, label="Anna smokes")
axes.set_xticks(range(6), names)
axes.set(ylabel="probability", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()
