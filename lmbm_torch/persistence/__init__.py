"""Files of models, estimators and predictors, and run directories; reading executes nothing."""

from lmbm_torch.persistence.files import load, save

__all__ = ["load", "save"]
