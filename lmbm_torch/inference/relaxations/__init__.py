"""Linear and integer programmes over the local polytope, and bounds by flows."""
