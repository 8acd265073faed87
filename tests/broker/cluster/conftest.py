"""What several test files of this folder are given."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import grpc.aio
import pytest

from ledgermq.rpc.grpc_server import GrpcServer

from .two_nodes import Two, opened


@pytest.fixture(params=[grpc.aio.server, GrpcServer], ids=["grpcio", "event_loop"])
def two(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Two]:
    return opened(make_server=request.param)
