"""Benchmarks: ours beside other replicated brokers, in one run. Not part of the installed packages."""

import ledgermq.client.cluster.grpc_loading  # noqa: F401  # as every user of the client has it
