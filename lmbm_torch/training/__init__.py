"""Learning models: Lightning modules and callbacks, and the directories of their runs.

Imported by their modules, since only some of them do without Lightning:

* ``gradient``, ``dual``, ``latent``, ``chains``: modules that train by any loss, to a certified gap, with
  hidden units, and of sequences; ``base`` and ``structured``, their common parts, and ``penalties``;
* ``callbacks.display``, ``callbacks.latent``, ``callbacks.overviews``: figures, charts, schedules and seeds
  of a run; ``callbacks.centring``, better conditioned steps of machines with hidden units;
* ``durable``, ``runs``: checkpoints and run directories; ``configured``, ``processes``: a run's parts.
"""
