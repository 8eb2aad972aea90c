"""Known values, rules and iterations, shared by the rooms of inference."""
