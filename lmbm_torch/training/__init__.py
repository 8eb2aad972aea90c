"""Training of models: Lightning modules and callbacks, and the directories of runs.

This package may change. Modules are imported singly, since some do not need Lightning:

* ``gradient``, ``dual``, ``latent``, ``chains``: training by any loss, to a certified duality gap, with
  hidden units, and of sequences; ``parallel_chains``: persistent contrastive divergence without input;
  ``base`` and ``structured``: common parts; ``penalties``;
* ``callbacks.display``, ``callbacks.latent``, ``callbacks.overviews``: figures, charts, loggers, schedules
  and seeds; ``callbacks.centring``: better conditioned steps of models with hidden units;
  ``callbacks.likelihood``: log-likelihoods and samples of models without input;
* ``runs``: checkpoints and run directories; ``configured``: parts and processes of a run.
"""
