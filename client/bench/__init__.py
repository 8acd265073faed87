"""Workloads of `ledgermq bench`, their figures and plots.

Owns what is measured and how. Must not: be needed by anything else.

Begin with `workloads.py`. Then: `figures.py`, `unary_callers.py`, `document.py`, `plots.py`.
"""
