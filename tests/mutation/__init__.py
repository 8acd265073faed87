"""Bugs injected into the source as changed lines, to see whether the unit tests of their package
find them.
"""
