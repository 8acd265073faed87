"""A broker node with the streams of the version before: `python -m tests.integration.former_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`. Like an older gRPC server it does not know the calls of
streams, and it opens plain frames. The rest is this build's: for tests of a rolling update.
"""

from __future__ import annotations

import sys

from ledgermq.broker.__main__ import main
from ledgermq.raft.transport.out_stream import OutStream
from ledgermq.rpc.grpc_server import GrpcServer

if __name__ == "__main__":
    OutStream._call = OutStream._former  # type: ignore[method-assign]
    GrpcServer.add_direct_method = lambda *given: None  # type: ignore[method-assign]
    raise SystemExit(main(sys.argv[1:]))
