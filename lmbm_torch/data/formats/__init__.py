"""Readers of files and services into :class:`lmbm_torch.data.MultilabelData`, a module a format."""
