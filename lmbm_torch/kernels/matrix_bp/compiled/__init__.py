"""Belief propagation compiled for the CPU (numba) and for CUDA (Triton, NVRTC)."""
