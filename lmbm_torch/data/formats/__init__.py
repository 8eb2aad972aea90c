"""Readers of :class:`lmbm_torch.data.MultilabelData` from files and services, a module for each format."""
