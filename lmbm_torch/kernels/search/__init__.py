"""Inner loops of inference: searches, enumeration, chains and samples."""
