"""A node elects a leader, and commits, with a peer written with grpcio and the generated stubs alone."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from crc32c import crc32c

from ledgermq.client import Producer
from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto import raft_pb2_grpc

from .cluster import Cluster, wait_until

_TAG = b"\x95\x01"  # of the field `checksum`
_WAIT_S = 60.0


def sealed(message: Any) -> Any:
    """Set the checksum as raft.proto says it."""
    message.checksum = crc32c(message.SerializeToString() + _TAG)
    return message


def is_sealed(message: Any) -> bool:
    bare = type(message)()
    bare.CopyFrom(message)
    bare.ClearField("checksum")
    return bool(message.HasField("checksum")) and message.checksum == crc32c(bare.SerializeToString() + _TAG)


class HandWrittenPeer(raft_pb2_grpc.RaftServiceServicer):
    """Node n2 of two: answers greetings, grants votes when it is told to, acknowledges what it gets."""

    def __init__(self) -> None:
        self.incarnation = 77
        self.node = pb.Hello()  # what n1 said of itself last
        self.grants = False
        self.last_index = 0
        self.log = b""
        self.granted: list[int] = []  # terms in which n1 voted for this peer
        self.damaged = self.arrived = 0
        self.to_node: queue.Queue[pb.RaftFrame] = queue.Queue()
        self._lock = threading.Lock()

    def hello(self, to: str = "") -> pb.Hello:
        is_known = bool(self.node.group_id)
        return pb.Hello(
            format=1, feature_level=self.node.feature_level or 1, cluster_id="local", group="g0",
            node_id="n2", to_node_id=to, incarnation=self.incarnation, segment_size=64 << 20,
            standing=pb.STANDING_VOTER if is_known else pb.STANDING_FRESH, group_id=self.node.group_id,
            known_incarnations={"n1": self.node.incarnation} if self.node.incarnation else {},
            replication="quorum",
        )  # fmt: skip

    # --- calls of n1 ----------------------------------------------------------------------------------------
    def Control(self, requests: Iterator[pb.RaftFrame], context: Any) -> Iterator[pb.StreamAnswer]:
        return self._serve(requests)

    def Append(self, requests: Iterator[pb.RaftFrame], context: Any) -> Iterator[pb.StreamAnswer]:
        return self._serve(requests)

    def _serve(self, requests: Iterator[pb.RaftFrame]) -> Iterator[pb.StreamAnswer]:
        first = next(requests)
        self.node = first.hello
        yield sealed(pb.StreamAnswer(reply=pb.HelloReply(hello=self.hello())))
        arrived = 0
        for frame in requests:
            arrived += frame.ByteSize()
            with self._lock:
                self._take(frame)
            yield sealed(pb.StreamAnswer(arrived=arrived))

    def _take(self, frame: pb.RaftFrame) -> None:
        self.damaged += not is_sealed(frame)
        if frame.HasField("hello"):
            self.node = frame.hello
        for message in frame.messages:
            self._answer(message, frame.entries)

    def _answer(self, message: pb.RaftMessage, entries: bytes) -> None:
        kind = message.WhichOneof("body")
        if kind == "request_vote" and self.grants:
            vote = pb.RequestVoteReply(granted=True, pre_vote=message.request_vote.pre_vote)
            self.send(pb.RaftMessage(term=message.term, request_vote_reply=vote))
        elif kind == "request_vote_reply" and message.request_vote_reply.granted:
            self.granted.append(message.term)
        elif kind == "heartbeat":
            beat = message.heartbeat
            reply = pb.RaftHeartbeatReply(
                context=beat.context, stable_index=self.last_index, commit_index=beat.commit_index
            )
            self.send(pb.RaftMessage(term=message.term, heartbeat_reply=reply))
        elif kind == "append_entries":
            append = message.append_entries
            fits = append.prev_index <= self.last_index
            if fits:
                self.log += entries
                self.last_index = max(self.last_index, append.last_index)
            answer = pb.AppendEntriesReply(
                success=fits,
                match_index=append.last_index if fits else 0,
                reject_index=0 if fits else append.prev_index,
                hint_index=0 if fits else self.last_index,
            )
            self.send(pb.RaftMessage(term=message.term, append_entries_reply=answer))

    # --- its own call ---------------------------------------------------------------------------------------
    def send(self, message: pb.RaftMessage) -> None:
        self.to_node.put(pb.RaftFrame(messages=[message]))

    def call(self, address: str) -> None:
        """Keep a Control stream to n1: a greeting, then what `send` is given."""
        with grpc.insecure_channel(address) as channel:
            answers = raft_pb2_grpc.RaftServiceStub(channel).Control(self._frames(), wait_for_ready=True)
            reply = next(answers)
            assert is_sealed(reply) and not reply.reply.refusal, reply
            self.node = reply.reply.hello
            try:
                for answer in answers:
                    self.damaged += not is_sealed(answer)
                    self.arrived = answer.arrived
            except grpc.RpcError:  # n1 has ended
                pass

    def _frames(self) -> Iterator[pb.RaftFrame]:
        yield sealed(pb.RaftFrame(hello=self.hello("n1")))
        while True:
            yield sealed(self.to_node.get())

    def campaign(self) -> None:
        """Ask n1 for its vote, as a node that the leader hands the lead over to."""
        request = pb.RequestVote(last_index=0, last_term=0, transfer=True)
        self.send(pb.RaftMessage(term=self.node.term + 1, request_vote=request))


def test_a_leader_is_elected_and_commits_with_a_hand_written_grpcio_peer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=2)
    peer = HandWrittenPeer()
    server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
    raft_pb2_grpc.add_RaftServiceServicer_to_server(peer, server)
    server.add_insecure_port(cluster.address("n2", "raft"))
    server.start()
    try:
        cluster.nameservers[0].start()
        cluster.start("n1")
        caller = threading.Thread(target=peer.call, args=(cluster.address("n1", "raft"),), daemon=True)
        caller.start()
        wait_until(lambda: peer.node.standing == pb.STANDING_VOTER, "n1 may vote")
        # n1 votes for the peer
        peer.campaign()
        wait_until(lambda: peer.granted, "n1 grants its vote")
        # the peer votes for n1
        peer.grants = True
        cluster.wait_ready("n1")
        assert cluster.wait_leader() == "n1"
        body = b"committed by a quorum of n1 and a peer of thirty lines"
        place = asyncio.run(send(cluster.nameserver, body))
        assert place == 0
        assert body in peer.log
        assert peer.arrived and not peer.damaged
    finally:
        cluster.stop_all()
        server.stop(None)


async def send(nameserver: str, body: bytes) -> int:
    async with Producer(nameserver) as producer:
        result = await producer.send("by-hand", body)
    return result.queue_offset
