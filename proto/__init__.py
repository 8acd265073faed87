"""The shared contract: RPC definitions, generated code, and the binary layouts (no I/O, no gRPC)."""
