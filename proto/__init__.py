"""Shared contract: RPC definitions, generated code, and the binary layouts. No I/O, no gRPC."""
