"""All use of what numba does not promise to keep; :mod:`lmbm_torch.kernels.jit` goes without if need be."""
