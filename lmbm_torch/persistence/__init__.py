"""What others hand over, read without running any of it."""
