"""Readers of files and services that return :class:`lmbm_torch.data.MultilabelData`, one module a format."""
