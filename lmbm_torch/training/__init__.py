"""Training of models: Lightning modules and callbacks, and run directories.

This package may change. Import its modules one by one, since some do not need Lightning:

* ``gradient``: training by any loss; ``dual``: to a certified duality gap; ``latent``: with hidden units;
  ``parallel_chains``: persistent contrastive divergence for models without input; ``structured``: the base
  class of training modules, and penalties;
* ``callbacks.display``: figures, charts, loggers and seeds; ``callbacks.latent``: schedules, figures, centred
  gradients, log-likelihoods and samples of models with hidden units;
* ``runs``: checkpoints and run directories; ``configured``: trainer, model and data from a configuration.
"""
