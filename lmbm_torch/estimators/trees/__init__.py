"""Trees of label vectors that count known labels alone."""
