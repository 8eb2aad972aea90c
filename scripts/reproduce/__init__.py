"""The tables of the papers, computed by today's code: what ``lmbm reproduce`` runs.

* ``cells``, ``evaluation``, ``tables``: cells that are computed once, their metrics, and a table's files;
* ``classifier_chains``, ``crbm_2017_paper``, ``crbm_2017_ablations``, ``crbm_classifier``, ``dual_2006``,
  ``encoders``, ``hierarchies``, ``linear_networks``, ``lmbm_2009``, ``lmsbn_2010``, ``m3n_2003``: a table
  each, with ``crbm_training``, ``decoding_times`` and ``dropout_network``, parts of some.
"""
