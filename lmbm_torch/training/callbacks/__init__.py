"""What a training shows while it runs, and how it is steered: Lightning callbacks."""
