"""The best labellings that obey rules."""
