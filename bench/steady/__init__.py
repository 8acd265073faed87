"""Steadiness of the nodes under long load: elections, lateness of the event loop, memory.

python -m bench.steady
"""
