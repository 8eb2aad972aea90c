"""The command ``lmbm``: train, predict, evaluate, report, compare and reproduce from the shell.

A module is a command: ``lmbm train`` is ``python -m lmbm_torch.cli.train``. Each reads its command line
before it imports what does the work, so a mistake is answered at once.

* ``entry``: finds the command; ``options``, ``showing``, ``configuration``: what commands share;
* ``train``, ``compare``: composed by Hydra from the configuration in ``conf/``;
* ``reproduce``: tables of a clone, by its scripts;
* ``predict``, ``evaluate``, ``report``: a trained model and a file;
* ``compile``: every kernel beforehand, by ``first_calls``;
* ``jobs``: runs of ``train``.
"""
