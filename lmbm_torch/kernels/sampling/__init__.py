"""What samples of directed models are drawn for, compiled for the CPU."""
