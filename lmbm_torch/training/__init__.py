"""Learning models: Lightning modules and callbacks, and the directories of their runs.

Imported by their modules, since only some of them do without Lightning:

* ``gradient``, ``dual``, ``latent``, ``chains``: modules that train by any loss, to a certified gap, with
  hidden units, and whole sequences; ``structured``, what they share, ``penalties``;
* ``callbacks.display``, ``callbacks.latent``, ``callbacks.overviews``: what a run shows, and what makes it
  repeatable; ``callbacks.centring``, steps of machines with hidden units in better coordinates;
* ``durable``, ``runs``: what it leaves behind.
"""
