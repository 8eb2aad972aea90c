"""Structured prediction with dependent outputs.

Data flows forward: ``data → model(x) = energy → inference(energy) = marginals or labels → loss → training``.
Importing the package needs only torch and numpy: each name of ``__all__`` is imported at first use, and a
further library when a function first needs the library.
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
    "FactorEnergy",
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
    "load",
    "log_partition",
    "marginals",
    "memory_budget",
    "read_table",
    "sample",
    "save",
]

__version__ = "0.1.0"

# Packages in which a name of ``__all__`` is searched, fastest import first; type checkers read __init__.pyi.
_ROOMS = ("persistence", "energies", "constraints", "inference", "data", "estimators")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"lmbm_torch.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
