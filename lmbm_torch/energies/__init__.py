"""Energies: frozen dataclasses of log-potentials, with a leading batch axis and no trainable parameters.

The whole library uses the same sign, the same label values and the same numbering of labels:

* Stored tensors are **log-potentials**: larger is better. ``energy(labels) = −score(labels)``.
* Labels are **{0, 1}** wherever a user sees labels, shape ``(batch, labels)``; leading axes before the batch
  (``(*samples, batch, labels)``) are samples of the same batch. Labels of chains and trees are class indices.
* Boltzmann machines and sigmoid belief networks score **spins** s = 2y − 1, because the papers' features are
  parities. :func:`~lmbm_torch.energies.base.to_spins` is the only conversion. Restricted Boltzmann machines
  score {0, 1} units.
* Labels, parents and cliques are numbered by the label's index, never by the position in an ordering.
"""

from lmbm_torch.energies.base import BaseEnergy, Energy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.factor import FactorEnergy, FactorScopes
from lmbm_torch.energies.factor_views import to_chain, to_clique, to_factors, to_networkx, to_tree
from lmbm_torch.energies.markov_logic import Clause, from_markov_logic
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.energies.restricted import RestrictedEnergy
from lmbm_torch.energies.semi_chain import SemiChainEnergy
from lmbm_torch.energies.sequential import SequentialEnergy
from lmbm_torch.energies.tied_cliques import TiedCliques
from lmbm_torch.energies.tree import TreeEnergy

__all__ = [
    "BaseEnergy",
    "BipartiteEnergy",
    "ChainEnergy",
    "Clause",
    "CliqueEnergy",
    "DirectedEnergy",
    "Energy",
    "FactorEnergy",
    "FactorScopes",
    "PairwiseEnergy",
    "RestrictedEnergy",
    "SemiChainEnergy",
    "SequentialEnergy",
    "TiedCliques",
    "TreeEnergy",
    "from_markov_logic",
    "to_chain",
    "to_clique",
    "to_factors",
    "to_networkx",
    "to_tree",
]
