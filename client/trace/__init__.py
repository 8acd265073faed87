"""Message traces: what producers and consumers tell, and its format (D34).

Owns the tracer, which never holds up who is traced. Must not: need a trace topic to be there.

Begin with `tracer.py`. Then: `events.py`.
"""
