"""Benchmarks: ours beside other replicated brokers, in one run. Not part of the installed packages."""
