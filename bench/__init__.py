"""Benchmarks: ours beside other replicated brokers, in one run. Not part of the installed packages."""

from ledgermq.client.cli.grpc_settings import load_grpc

load_grpc()  # with the settings of the brokers and the command line
