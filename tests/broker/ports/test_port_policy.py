"""Client ports over real sockets: useless connections are closed, and TLS delays no other client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from ledgermq.broker.config import BrokerConfig, ListenerConfig, split_address
from ledgermq.broker.errors import CertificateError
from ledgermq.broker.ports.listeners import Listeners
from ledgermq.broker.ports.port_policy import PortPolicy, server_context, server_credentials
from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.counts import Ended, PortCounts, PortMetrics
from tests.ports import free_ports
from tests.tls import CERTIFICATE, KEY, tls_hello

pytestmark = pytest.mark.usefixtures("runner")

WAIT_S = 20.0
#: How HTTP/2 begins, and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
FRESH = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True)
class Serving:
    """Who speaks gRPC, in which event loop."""

    transport: str
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


EVERY = {
    "grpcio": Serving("grpcio"),
    "event_loop-asyncio": Serving("event_loop"),
    "event_loop-uvloop": Serving("event_loop", uvloop.new_event_loop),
}
serving: list[Serving] = []


@pytest.fixture(params=list(EVERY.values()), ids=list(EVERY))
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    serving[:] = [request.param]
    with asyncio.Runner(loop_factory=request.param.new_loop) as made:
        yield made


async def echo(request: bytes, context: Any) -> bytes:
    return request


class Ports:
    """The two client ports of a node, which echo."""

    def __init__(self, policy: PortPolicy) -> None:
        policy = replace(policy, transport=serving[0].transport)
        if policy.credentials is not None and policy.transport == "event_loop":
            policy = replace(policy, credentials=None, tls=server_context(TLS))
        log, messaging = free_ports(2)
        self.addresses = {"log": f"127.0.0.1:{log}", "messaging": f"127.0.0.1:{messaging}"}
        config = ListenerConfig(messaging_bind=self.addresses["messaging"], log_bind=self.addresses["log"])
        self._metrics = PortMetrics()
        self._listeners = Listeners([config], policy, self._metrics)
        self._sockets: list[socket.socket] = []

    async def open(self) -> None:
        method = grpc.unary_unary_rpc_method_handler(echo)
        handlers = [grpc.method_handlers_generic_handler("test.Echo", {"Once": method})]
        await self._listeners.start(lambda name: (handlers, handlers))

    async def close(self) -> None:
        for each in self._sockets:
            each.close()
        await self._listeners.stop(0)

    def counts(self, port: str) -> PortCounts:
        return next(each for each in self._metrics._ports if each.port == port)

    async def connect(self, port: str) -> socket.socket:
        connection = socket.create_connection(split_address(self.addresses[port]))
        connection.setblocking(False)
        self._sockets.append(connection)
        return connection

    async def call(self, port: str, *, tls: bool = False, patient: bool = False) -> bytes:
        """Call on a new connection. `patient`: connect again when refused. Raises: grpc.aio.AioRpcError."""
        address = self.addresses[port]
        channel = grpc.aio.insecure_channel(address, FRESH)
        if tls:
            trusted = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
            channel = grpc.aio.secure_channel(address, trusted, FRESH)
        async with channel:
            once: Any = channel.unary_unary("/test.Echo/Once", None, None)
            answer: bytes = await once(b"hello", timeout=WAIT_S, wait_for_ready=patient)
            return answer


@asynccontextmanager
async def opened(policy: PortPolicy) -> AsyncIterator[Ports]:
    ports = Ports(policy)
    await ports.open()
    try:
        yield ports
    finally:
        await ports.close()


async def ended(connection: socket.socket) -> None:
    """Return when the other side has closed the connection."""
    with suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
            pass


@pytest.mark.parametrize("port", ["log", "messaging"])
@pytest.mark.parametrize("first", [b"P", PREFACE[:-3]])
async def test_a_handshake_that_does_not_go_on_is_ended(port: str, first: bytes) -> None:
    """A slow loris: it says something, so that it is not silent, and never all of it."""
    async with opened(PortPolicy(handshake_ms=50)) as ports:
        connection = await ports.connect(port)
        await asyncio.get_running_loop().sock_sendall(connection, first)
        await ended(connection)
        assert await ports.call(port) == b"hello"


@pytest.mark.parametrize("port", ["log", "messaging"])
async def test_a_client_that_does_not_answer_is_given_up(port: str) -> None:
    """As one whose machine vanished: it speaks HTTP/2, and answers no ping."""
    async with opened(PortPolicy(ask_ms=50, answer_ms=50)) as ports:
        connection = await ports.connect(port)
        await asyncio.get_running_loop().sock_sendall(connection, PREFACE)
        await ended(connection)


@pytest.mark.parametrize("port", ["log", "messaging"])
async def test_an_idle_connection_is_closed_and_opened_again_when_needed(port: str) -> None:
    async with opened(PortPolicy(idle_ms=50)) as ports:
        channel = grpc.aio.insecure_channel(ports.addresses[port], FRESH)
        async with channel:
            once: Any = channel.unary_unary("/test.Echo/Once", None, None)
            assert await once(b"1", timeout=WAIT_S) == b"1"
            state = channel.get_state()
            while state is not grpc.ChannelConnectivity.IDLE:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
            assert await once(b"2", timeout=WAIT_S) == b"2"


async def test_what_the_kernel_is_asked_to_find_out_holds_for_every_connection_of_a_front() -> None:
    made: list[Any] = []
    connection_made = port_front.Inbound.connection_made

    def noted(self: port_front.Inbound, transport: asyncio.BaseTransport) -> None:
        connection_made(self, transport)
        made.append(transport.get_extra_info("socket"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port_front.Inbound, "connection_made", noted)
        async with opened(PortPolicy()) as ports:
            assert await ports.call("messaging") == b"hello"
            await ports.connect("messaging")
            while len(made) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert made[1].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 90_000
            assert made[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_the_log_port_refuses_more_connections_than_its_limit() -> None:
    async with opened(PortPolicy(max_connections=3)) as ports:
        kept = [await ports.connect("log") for _ in range(3)]
        for each in kept:
            await asyncio.get_running_loop().sock_sendall(each, PREFACE)
            assert await asyncio.get_running_loop().sock_recv(each, 9), "it answers with its own SETTINGS"
        await ended(await ports.connect("log"))
        for each in kept:
            each.close()
        assert await ports.call("log", patient=True) == b"hello", "when gRPC has noticed that they are closed"


@pytest.mark.parametrize("port", ["log", "messaging"])
async def test_a_request_that_grpc_compressed_is_refused_before_it_is_unpacked(port: str) -> None:
    """Its size is bounded before, not behind: a MiB of it may stand for a GiB."""
    async with opened(PortPolicy()) as ports:
        channel = grpc.aio.insecure_channel(ports.addresses[port], FRESH)
        async with channel:
            once: Any = channel.unary_unary("/test.Echo/Once", None, None)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await once(bytes(1 << 20), timeout=WAIT_S, compression=grpc.Compression.Gzip)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "gzip" in str(refused.value.details())
            assert await once(b"hello", timeout=WAIT_S) == b"hello"


TLS = BrokerConfig(client_tls="both", tls_certificate=CERTIFICATE, tls_private_key=KEY)


def credentials() -> grpc.ServerCredentials:
    found = server_credentials(TLS)
    assert found is not None
    return found


async def test_both_plaintext_and_tls_are_served_on_one_port() -> None:
    async with opened(PortPolicy(credentials=credentials())) as ports:
        assert await ports.call("messaging", tls=True) == b"hello"
        assert await ports.call("messaging") == b"hello"


async def test_a_port_of_tls_alone_refuses_plaintext_and_says_what_to_switch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(PortPolicy(credentials=credentials(), plaintext=False)) as ports:
        connection = await ports.connect("messaging")
        await asyncio.get_running_loop().sock_sendall(connection, PREFACE)
        await ended(connection)
        assert await ports.call("messaging", tls=True) == b"hello"
    assert "plaintext refused port=messaging/default peer=127.0.0.1" in caplog.text
    assert "Switch TLS on" in caplog.text


async def test_handshakes_that_clients_do_not_end_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more than are served at once: half a hello, a whole one, and one whose answer is never read."""
    monkeypatch.setattr(port_front, "TLS_HELLOS_AT_ONCE", 2)
    loop = asyncio.get_running_loop()
    async with opened(PortPolicy(credentials=credentials())) as ports:
        first, open_ones = tls_hello(), []
        for number in range(30):
            connection = await ports.connect("messaging")
            open_ones.append(connection)
            await loop.sock_sendall(connection, first[: len(first) // 2] if number % 3 == 0 else first)
            if number % 3 == 1:
                assert await loop.sock_recv(connection, 1), "the server has answered, and waits"
        assert await ports.call("messaging") == b"hello"
        assert await ports.call("messaging", tls=True) == b"hello"
        assert ports.counts("messaging").open >= 30, "they are all there"


async def test_a_handshake_has_a_time_limit_whatever_part_of_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 0.2)
    async with opened(PortPolicy(credentials=credentials())) as ports:
        first = tls_hello()
        for part, why in ((first[:20], Ended.SILENT), (first, Ended.HANDSHAKE)):
            connection = await ports.connect("messaging")
            await asyncio.get_running_loop().sock_sendall(connection, part)
            await ended(connection)
            assert ports.counts("messaging").ended[why] == 1
        assert await ports.call("messaging", tls=True) == b"hello"


async def test_a_connection_that_ended_its_handshake_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 0.5)
    monkeypatch.setattr(port_front, "EVICTABLE_AFTER_S", 0.0)
    policy = PortPolicy(credentials=credentials(), max_connections=2)
    async with opened(policy) as ports:
        trusted = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
        channel = grpc.aio.secure_channel(ports.addresses["messaging"], trusted, FRESH)
        async with channel:
            once: Any = channel.unary_unary("/test.Echo/Once", None, None)
            assert await once(b"1", timeout=WAIT_S) == b"1"
            for _ in range(3):  # each makes the silent one before it leave, or ends with its time
                await ended(await ports.connect("messaging"))
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            assert await once(b"2", timeout=WAIT_S) == b"2"


def test_a_certificate_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for certificate, word in ((tmp_path / "none.pem", "No such file"), (broken, "PEM")):
        config = BrokerConfig(client_tls="tls", tls_certificate=certificate, tls_private_key=KEY)
        with pytest.raises(CertificateError, match=word) as error:
            server_credentials(config)
        assert str(certificate) in str(error.value)
        assert "set client_tls to plaintext" in str(error.value)
