"""Workloads of `ledgermq bench`, with their figures and plots.

Owns: the measurements. Must not: be needed by anything else.

Begin with `workloads.py`. Then: `figures.py`, `unary_callers.py`, `document.py`, `plots.py`.
"""
