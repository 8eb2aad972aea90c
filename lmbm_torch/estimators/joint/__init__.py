"""Joint distributions of labels over the scores of any model. This package is internal and may change."""
