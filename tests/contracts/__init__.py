"""What every inference routine promises, for every kind of energy that it takes."""
