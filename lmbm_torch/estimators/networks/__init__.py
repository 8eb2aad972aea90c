"""Large-margin sigmoid belief networks: trainers, orders of labels, ensembles."""
