"""Structured prediction with dependent outputs.

Data flows one way: ``data → model(x) = energy → inference(energy) = marginals or labels → loss → training``.
Importing this package needs torch and numpy alone; everything heavier is imported by the leaf that uses it.
"""

__version__ = "0.1.0"
