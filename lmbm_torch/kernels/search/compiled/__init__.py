"""Inner loops of inference, compiled for the CPU."""
