import ledgermq.client.cluster.grpc_loading  # noqa: F401  # as whoever uses the client has it, whatever a test imports first
