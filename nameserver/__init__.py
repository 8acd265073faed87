"""The soft-state route registry."""
