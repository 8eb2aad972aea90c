"""Files and services in, :class:`lmbm_torch.data.MultilabelData` out: one module a format."""
