"""Joint distributions of labels given scores of any model. This package is internal and may change."""
