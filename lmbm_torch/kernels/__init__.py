"""Compiled inner loops of inference and solvers alone, each beside its plain reference."""
