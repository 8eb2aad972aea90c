"""Learning models: Lightning modules and callbacks, checkpoints, and prediction from a checkpoint.

Imported by their modules, since only some of them do without Lightning:

* ``gradient``, ``dual``, ``latent``, ``chains``: modules that train by any loss, to a certified gap, with
  hidden units, and whole sequences; ``structured``, what they share, ``penalties``;
* ``callbacks``, ``latent_callbacks``, ``overviews``: what a run shows, and what makes it repeatable;
  ``centring``, steps of machines with hidden units in better coordinates;
* ``checkpoints``, ``durable``, ``runs``: what it leaves behind;
* ``prediction``, ``decoding``, ``probabilities``, ``top_k``: a trained model on new rows, without Lightning;
* ``findings``, ``pages``, ``reports``, ``fitted``: and reports of it.
"""
