"""The command ``lmbm``: train, predict, evaluate, report, compare and reproduce from the shell.

This package is internal and may change; the manual describes the commands. Each command is a module: ``lmbm
train`` runs ``python -m lmbm_torch.cli.train``. Each command parses the command line before slow imports, and
reports mistakes quickly.

* ``entry``: the choice of the command; ``options``, ``showing``, ``configuration``: parts of commands;
* ``train``, ``compare``: commands that Hydra configures from ``conf/``;
* ``reproduce``: tables of papers, by scripts of a clone of the repository;
* ``predict``, ``evaluate``, ``report``: commands for a trained model and a file;
* ``compile``: compilation of all kernels, by the calls in ``first_calls``;
* ``jobs``, ``estimated``: runs of ``train``.
"""
