"""Structured prediction with dependent outputs.

Data flows one way: ``data → model(x) = energy → inference(energy) = marginals or labels → loss → training``.
Importing this package needs torch and numpy alone; everything heavier is imported by the leaf that uses it.
"""

from lmbm_torch.memory import memory_budget

__all__ = ["__version__", "memory_budget"]

__version__ = "0.1.0"
