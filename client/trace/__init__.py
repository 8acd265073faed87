"""Message traces: the tracer of producers and consumers, and the trace format (D34).

Owns: the tracer, which never delays the traced client. Must not: need a trace topic to exist.

Begin with `tracer.py`. Then: `events.py`.
"""
