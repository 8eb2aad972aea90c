"""What all estimators share: settings, checks of calls, targets, files."""
