"""Learning models: Lightning modules and callbacks, and the directories of their runs.

Imported by their modules, since only some of them do without Lightning:

* ``gradient``, ``dual``, ``latent``, ``chains``: modules that train by any loss, to a certified gap, with
  hidden units, and of sequences; ``parallel_chains``, persistent contrastive divergence without input;
  ``base`` and ``structured``, their common parts, and ``penalties``;
* ``callbacks.display``, ``callbacks.latent``, ``callbacks.overviews``: figures, charts, schedules and seeds
  of a run; of machines with hidden units ``callbacks.centring``, better conditioned steps, and of those
  without input ``callbacks.likelihood``, log-likelihoods and samples;
* ``runs``: checkpoints and run directories; ``configured``: a run's parts and processes.
"""
