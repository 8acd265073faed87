"""How steady the nodes are under long load: elections, lateness of the event loop, memory.   python -m bench.steady"""
