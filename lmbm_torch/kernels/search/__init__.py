"""Inner loops of inference: searches, enumeration, dynamic programming on chains, and samples."""
