"""A trained model on new rows, without Lightning: saved models, decoding, probabilities, reports."""
