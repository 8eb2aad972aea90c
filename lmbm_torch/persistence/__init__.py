"""Files of models, estimators and predictors, and directories of runs, which execute nothing when read."""

from lmbm_torch.persistence.files import load, save

__all__ = ["load", "save"]
