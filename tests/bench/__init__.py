"""Tests of the benchmarks' own logic: what they make of figures."""
