"""gRPC on the wire, spoken by an asyncio protocol inside the event loop: no threads, no wake-ups.

Owns: HTTP/2 frames, header blocks, flow control, messages and calls, for servers and for clients. It speaks
with grpcio and every other gRPC peer; generated stubs and servicer classes work with it unchanged.
Must not: know any service, or another package of this project.

Begin with `grpc_server.py` and `grpc_channel.py`, the two ends. Under both: `http2_connection.py`, which is
made of `http2_input.py`, which reads frames, `http2_output.py`, which sends them, and parts with one subject
each; `http2_stream.py` is one call on it. `direct_call.py` is for streams where a turn of the loop counts.
Then `http2_frames.py`, `header_blocks.py`, `flow_control.py`, `shared_memory.py`, `unsent_memory.py`,
`turns.py`, `call_headers.py`, `grpc_messages.py`; every bound stands in `wire_limits.py`.
"""
