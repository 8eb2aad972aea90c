"""Chains and trees: max-margin Markov networks, conditional random fields, hidden Markov models."""
