"""The command ``lmbm``: train, predict, evaluate, report, compare and reproduce from the shell.

This package is internal and may change; the commands are described in the manual. A module is a command:
``lmbm train`` is ``python -m lmbm_torch.cli.train``. Each command parses the command line before heavy
imports, so a mistake is reported at once.

* ``entry``: finds the command; ``options``, ``showing``, ``configuration``: shared parts of commands;
* ``train``, ``compare``: composed by Hydra from the configuration in ``conf/``;
* ``reproduce``: tables of a clone, by scripts of the clone;
* ``predict``, ``evaluate``, ``report``: a trained model and a file;
* ``compile``: every kernel beforehand, by ``first_calls``;
* ``jobs``, ``estimated``: runs of ``train``.
"""
