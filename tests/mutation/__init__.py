"""Bugs injected into the source as changed lines, to see whether the package's unit tests find them."""
