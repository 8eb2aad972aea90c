"""Training of models: Lightning modules and callbacks, and the directories of runs.

This package may change. Modules are imported singly, since some do not need Lightning:

* ``gradient``, ``dual``, ``latent``: training by any loss, to a certified duality gap, and with hidden
  units; ``parallel_chains``: persistent contrastive divergence without input; ``structured``: common parts;
  ``penalties``;
* ``callbacks.display``, ``callbacks.latent``, ``callbacks.overviews``: figures, charts, loggers, schedules
  and seeds; ``callbacks.centring``: better conditioned steps of models with hidden units;
  ``callbacks.likelihood``: log-likelihoods and samples of models without input;
* ``runs``: checkpoints and run directories; ``configured``: parts and processes of a run.
"""
