"""The tables of the papers, computed by today's code: what ``lmbm reproduce`` runs in a clone.

* ``any_table``, ``classifier_chains``, ``crbm_2017_paper``, ``crbm_2017_ablations``,
  ``crbm_2017_occlusions``, ``crbm_classifier``, ``dual_2006``, ``encoders``, ``hierarchies``,
  ``linear_networks``, ``lmbm_2009``, ``lmsbn_2010``, ``m3n_2003``: a table each, with its settings in
  ``conf/table``;
* ``budgets``, ``crbm_epochs``, ``crbm_problems``, ``crbm_training``, ``decoding_times``, ``dropout_network``,
  ``figures``, ``gradients``: parts of some; ``cells``: cells that are computed once.

Metrics and a table's files are those of :mod:`lmbm_torch.compare`.
"""

from pathlib import Path

CONFIGURATION = str(Path(__file__).parent / "conf")
"""What Hydra composes: the settings of all tables."""
