"""Best labellings under rules."""
