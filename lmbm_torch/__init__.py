"""Structured prediction with dependent outputs.

Data flows one way: ``data → model(x) = energy → inference(energy) = marginals or labels → loss → training``.
Importing this package needs torch and numpy alone: each name of ``__all__`` is imported from its room when
somebody asks for the name, and everything heavier by the leaf that uses it.
"""

from importlib import import_module
from typing import Any

from lmbm_torch.memory import memory_budget

__all__ = [
    "AutoLabelClassifier",
    "BipartiteEnergy",
    "ChainCRF",
    "ChainEnergy",
    "ChainSVM",
    "CliqueEnergy",
    "ConditionalRBMClassifier",
    "ConformalClassifier",
    "ConstrainedClassifier",
    "Constraints",
    "DirectedEnergy",
    "HiddenMarkovClassifier",
    "HierarchicalClassifier",
    "IndependentLabelsClassifier",
    "JointClassifier",
    "JointHead",
    "KernelLogisticRegression",
    "LMBMClassifier",
    "LMBMClassifierCV",
    "LMSBNClassifier",
    "LMSBNClassifierCV",
    "LMSBNEnsembleClassifier",
    "MaximumEntropyMarkovClassifier",
    "MultiClassSVM",
    "PairwiseEnergy",
    "ProbabilisticClassifierChain",
    "RestrictedEnergy",
    "SequentialEnergy",
    "StructuralSVMClassifier",
    "StructuralSVMClassifierCV",
    "ThresholdTunedClassifier",
    "TreeEnergy",
    "__version__",
    "decode",
    "decode_hinge",
    "log_partition",
    "marginals",
    "memory_budget",
    "read_table",
    "sample",
]

__version__ = "0.1.0"

# The rooms that list these names, the lightest first; __init__.pyi says the same to type checkers.
_ROOMS = ("energies", "constraints", "inference", "data", "estimators")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"lmbm_torch.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
