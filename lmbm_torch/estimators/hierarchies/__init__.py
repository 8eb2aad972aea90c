"""Anyone's classifiers under a hierarchy of labels."""
