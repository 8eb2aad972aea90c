"""Estimators in scikit-learn's style: multi-label classifiers, classifiers of classes and of sequences.

Apart from the listed classes, two groups of modules are public; other modules are internal and may change.

* ``common.baselines``, ``chains.baselines``: baselines of the papers, assembled from scikit-learn's
  estimators;
* ``networks.orderings``: orders of the labels of a belief network.
"""

from typing import TYPE_CHECKING

from lmbm_torch.extras import late, naming_extras

with naming_extras():
    # All modules need scikit-learn; the message of a failed import names the extra to install.
    import sklearn as sklearn

if TYPE_CHECKING:
    from lmbm_torch.estimators.automatic.classifier import AutoLabelClassifier
    from lmbm_torch.estimators.chains.baselines import MaximumEntropyMarkovClassifier
    from lmbm_torch.estimators.chains.classifiers import ChainCRF, ChainSVM
    from lmbm_torch.estimators.chains.hidden_markov import HiddenMarkovClassifier
    from lmbm_torch.estimators.chains.validation import cross_val_predict_sequences
    from lmbm_torch.estimators.classes import KernelLogisticRegression, MultiClassSVM
    from lmbm_torch.estimators.common.saving import make_pipeline
    from lmbm_torch.estimators.graphs.classifier import GraphClassifier
    from lmbm_torch.estimators.graphs.grid import GridClassifier
    from lmbm_torch.estimators.joint.classifier import JointClassifier
    from lmbm_torch.estimators.joint.head import JointHead
    from lmbm_torch.estimators.label_chains.boosting import LabelBoostingClassifier
    from lmbm_torch.estimators.label_chains.forest import LabelForestClassifier
    from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain
    from lmbm_torch.estimators.machines.boltzmann import LMBMClassifier
    from lmbm_torch.estimators.machines.conditional_rbm import ConditionalRBMClassifier
    from lmbm_torch.estimators.machines.structural_svm import StructuralSVMClassifier
    from lmbm_torch.estimators.networks.ensembles import LMSBNEnsembleClassifier
    from lmbm_torch.estimators.networks.independent_labels import IndependentLabelsClassifier
    from lmbm_torch.estimators.networks.sigmoid_belief import LMSBNClassifier
    from lmbm_torch.estimators.wrappers.conformal import (
        ConformalClassifier,
        JointConformalClassifier,
        RiskControlledClassifier,
    )
    from lmbm_torch.estimators.wrappers.constrained import ConstrainedClassifier
    from lmbm_torch.estimators.wrappers.hierarchical import HierarchicalClassifier
    from lmbm_torch.estimators.wrappers.penalty_path import (
        LMBMClassifierCV,
        LMSBNClassifierCV,
        StructuralSVMClassifierCV,
    )
    from lmbm_torch.estimators.wrappers.threshold_tuning import ThresholdTunedClassifier

__all__ = [
    "AutoLabelClassifier",
    "ChainCRF",
    "ChainSVM",
    "ConditionalRBMClassifier",
    "ConformalClassifier",
    "ConstrainedClassifier",
    "GraphClassifier",
    "GridClassifier",
    "HiddenMarkovClassifier",
    "HierarchicalClassifier",
    "IndependentLabelsClassifier",
    "JointClassifier",
    "JointConformalClassifier",
    "JointHead",
    "KernelLogisticRegression",
    "LMBMClassifier",
    "LMBMClassifierCV",
    "LMSBNClassifier",
    "LMSBNClassifierCV",
    "LMSBNEnsembleClassifier",
    "LabelBoostingClassifier",
    "LabelForestClassifier",
    "MaximumEntropyMarkovClassifier",
    "MultiClassSVM",
    "ProbabilisticClassifierChain",
    "RiskControlledClassifier",
    "StructuralSVMClassifier",
    "StructuralSVMClassifierCV",
    "ThresholdTunedClassifier",
    "cross_val_predict_sequences",
    "make_pipeline",
]

__getattr__, __dir__ = late(__name__, __file__)
