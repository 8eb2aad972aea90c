from lmbm_torch.constraints import (
    Constraints as Constraints,
)
from lmbm_torch.data import (
    read_table as read_table,
)
from lmbm_torch.energies import (
    BipartiteEnergy as BipartiteEnergy,
)
from lmbm_torch.energies import (
    ChainEnergy as ChainEnergy,
)
from lmbm_torch.energies import (
    CliqueEnergy as CliqueEnergy,
)
from lmbm_torch.energies import (
    DirectedEnergy as DirectedEnergy,
)
from lmbm_torch.energies import (
    FactorEnergy as FactorEnergy,
)
from lmbm_torch.energies import (
    PairwiseEnergy as PairwiseEnergy,
)
from lmbm_torch.energies import (
    RestrictedEnergy as RestrictedEnergy,
)
from lmbm_torch.energies import (
    SequentialEnergy as SequentialEnergy,
)
from lmbm_torch.energies import (
    TreeEnergy as TreeEnergy,
)
from lmbm_torch.estimators import (
    AutoLabelClassifier as AutoLabelClassifier,
)
from lmbm_torch.estimators import (
    ChainCRF as ChainCRF,
)
from lmbm_torch.estimators import (
    ChainSVM as ChainSVM,
)
from lmbm_torch.estimators import (
    ConditionalRBMClassifier as ConditionalRBMClassifier,
)
from lmbm_torch.estimators import (
    ConformalClassifier as ConformalClassifier,
)
from lmbm_torch.estimators import (
    ConstrainedClassifier as ConstrainedClassifier,
)
from lmbm_torch.estimators import (
    HiddenMarkovClassifier as HiddenMarkovClassifier,
)
from lmbm_torch.estimators import (
    HierarchicalClassifier as HierarchicalClassifier,
)
from lmbm_torch.estimators import (
    IndependentLabelsClassifier as IndependentLabelsClassifier,
)
from lmbm_torch.estimators import (
    JointClassifier as JointClassifier,
)
from lmbm_torch.estimators import (
    JointHead as JointHead,
)
from lmbm_torch.estimators import (
    KernelLogisticRegression as KernelLogisticRegression,
)
from lmbm_torch.estimators import (
    LMBMClassifier as LMBMClassifier,
)
from lmbm_torch.estimators import (
    LMBMClassifierCV as LMBMClassifierCV,
)
from lmbm_torch.estimators import (
    LMSBNClassifier as LMSBNClassifier,
)
from lmbm_torch.estimators import (
    LMSBNClassifierCV as LMSBNClassifierCV,
)
from lmbm_torch.estimators import (
    LMSBNEnsembleClassifier as LMSBNEnsembleClassifier,
)
from lmbm_torch.estimators import (
    MaximumEntropyMarkovClassifier as MaximumEntropyMarkovClassifier,
)
from lmbm_torch.estimators import (
    MultiClassSVM as MultiClassSVM,
)
from lmbm_torch.estimators import (
    ProbabilisticClassifierChain as ProbabilisticClassifierChain,
)
from lmbm_torch.estimators import (
    StructuralSVMClassifier as StructuralSVMClassifier,
)
from lmbm_torch.estimators import (
    StructuralSVMClassifierCV as StructuralSVMClassifierCV,
)
from lmbm_torch.estimators import (
    ThresholdTunedClassifier as ThresholdTunedClassifier,
)
from lmbm_torch.inference import (
    decode as decode,
)
from lmbm_torch.inference import (
    decode_hinge as decode_hinge,
)
from lmbm_torch.inference import (
    log_partition as log_partition,
)
from lmbm_torch.inference import (
    marginals as marginals,
)
from lmbm_torch.inference import (
    sample as sample,
)
from lmbm_torch.memory import memory_budget as memory_budget
from lmbm_torch.persistence import (
    load as load,
)
from lmbm_torch.persistence import (
    save as save,
)

__version__: str
