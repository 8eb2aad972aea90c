"""Learning models: Lightning modules and callbacks, checkpoints, and prediction from a checkpoint.

Nothing is imported here, since only :mod:`~lmbm_torch.training.checkpoints` and
:mod:`~lmbm_torch.training.prediction` do without Lightning.
"""
