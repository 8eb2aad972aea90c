"""Parts that all estimators share: parameters, validation, targets, files."""
