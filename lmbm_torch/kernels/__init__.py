"""Compiled inner loops of inference and solvers, with plain references. Internal; may change."""
