"""Real RaftNodes in one process: real gRPC on loopback, real files. The vocabulary of test_node*.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ledgermq.proto.entry import EntryHeader, EntryKind
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import RaftError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.state_machine import Proposal
from ledgermq.raft.types import LogIndex, NodeId, Term
from tests.ports import free_port

WAIT_S = 30.0
SEGMENT = 1 << 20
NOTHING = LogIndex(0)
C = TypeVar("C", bound="Cluster")


@dataclass
class RecordingStateMachine:
    """Keeps every applied payload."""

    applied: list[tuple[int, int, bytes]] = field(default_factory=list)  # index, term, payload of RECORDS
    last_applied_index: LogIndex = NOTHING
    ready: list[Term] = field(default_factory=list)
    lost: list[Term] = field(default_factory=list)
    leaders: list[NodeId | None] = field(default_factory=list)
    fail_at: int = 0

    def load(self) -> LogIndex:
        return self.last_applied_index

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        for header, payload in entries:
            assert header.index == self.last_applied_index + 1
            if header.index == self.fail_at:
                raise ValueError("a bug in apply")
            self.last_applied_index = LogIndex(header.index)
            if header.kind is EntryKind.RECORDS:
                self.applied.append((header.index, header.term, bytes(payload)))

    def on_leader_ready(self, term: Term, timestamp: int) -> None:
        self.ready.append(term)

    def on_leader_lost(self, term: Term) -> None:
        self.lost.append(term)

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None:
        self.leaders.append(leader_id)


class Cluster:
    """Nodes `names`. Every verb waits until its result is true."""

    def __init__(self, folder: Path, names: Sequence[str] = ("n1", "n2", "n3"), **settings: Any) -> None:
        self.folder = folder
        self.members = tuple(Member(NodeId(n), f"127.0.0.1:{free_port()}") for n in names)
        self.settings = settings
        self.nodes: dict[str, RaftNode] = {}
        self.machines: dict[str, RecordingStateMachine] = {}
        self.fatal: dict[str, str] = {}

    def config(self, name: str, **changes: Any) -> RaftConfig:
        config = RaftConfig(
            cluster_id="test", group="g0", node_id=NodeId(name), members=self.members,
            data_dir=self.folder / name, segment_size=SEGMENT, **self.settings,
        )  # fmt: skip
        return replace_config(config, **changes)

    async def start(self, *names: str, files: FileSystem | None = None, **changes: Any) -> None:
        for name in names or [m.node_id for m in self.members]:
            machine = self.machines[name] = RecordingStateMachine()
            node = RaftNode(
                self.config(name, **changes), machine, files=files,
                on_fatal=partial(self.fatal.__setitem__, name),
            )  # fmt: skip
            await node.start()
            self.nodes[name] = node

    async def begin(self, *payloads: bytes) -> None:
        """Start all nodes, and commit and apply these entries everywhere."""
        await self.start()
        await self.send(*payloads)
        await self.settle()

    async def kill(self, *names: str) -> None:
        for name in names:
            await kill(self.nodes.pop(name))

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.nodes.pop(name).stop()

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110 (whatever it is about, nothing announces it)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            states = {
                n: (x.role, x.term, x.last_index, x.commit_index, x.leader_id) for n, x in self.nodes.items()
            }
            raise AssertionError(f"never: {what or condition}; nodes {states}; fatal {self.fatal}") from None

    async def leader(self) -> str:
        """Return the name of the node that leads, is ready, and is followed by all running nodes."""

        def found() -> bool:
            leads = [n for n, node in self.nodes.items() if node.is_leader_ready]
            return len(leads) == 1 and all(node.leader_id == leads[0] for node in self.nodes.values())

        await self.until(found, "one leader")
        return next(n for n, node in self.nodes.items() if node.is_leader_ready)

    async def send(self, *payloads: bytes) -> list[Proposal]:
        """Propose until committed. Returns the proposals."""
        done = []
        for payload in payloads:
            while True:
                leader = await self.leader()
                try:
                    proposal = self.nodes[leader].propose([payload], 1)
                    await proposal.committed
                except RaftError:
                    continue
                done.append(proposal)
                break
        return done

    async def settle(self) -> None:
        """Wait until every running node has applied everything."""

        def same() -> bool:
            last = {node.last_index for node in self.nodes.values()}
            return len(last) == 1 and {n.applied_index for n in self.nodes.values()} == last

        await self.until(same, "every node applied everything")

    def applied(self, name: str) -> list[bytes]:
        return [payload for _, _, payload in self.machines[name].applied]

    def log_bytes(self, name: str) -> bytes:
        """Return the bytes of a node's log files up to the end of its log."""
        log = self.nodes[name].log
        parts = b"".join(
            f.read_bytes()[:SEGMENT] for f in sorted((self.folder / name / "commitlog").glob("0" + "?" * 19))
        )
        return parts[: log.end_offset]

    async def close(self) -> None:
        await asyncio.gather(*(kill(node) for node in self.nodes.values()))


async def kill(node: RaftNode) -> None:
    """Close a node without a leadership transfer and without a clean-stop mark, as if it had been killed."""
    node._stopping = True
    await node._close(clean=False)


def replace_config(config: RaftConfig, **changes: Any) -> RaftConfig:
    return replace(config, **changes) if changes else config


def run(cluster: C, scenario: Callable[[C], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a fresh event loop and close every node afterwards."""

    async def main() -> None:
        try:
            await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(main())
