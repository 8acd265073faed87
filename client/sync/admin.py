"""Synchronous admin client.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", 8)
        for message in admin.query_messages("orders", key="4711").messages:
            print(message.message_id, message.body)

Owns: only the calls to its asyncio twin, with the same methods and errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.log_pb2 import QueueOffset
from ledgermq.proto.route_pb2 import TopicInfo

from ..admin.admin import Admin as AsyncAdmin
from ..admin.broker_groups import AddedGroup, Forgotten, Left, LostGroup
from ..admin.broker_groups import GroupAdmin as AsyncGroupAdmin
from ..admin.consumer_progress import Lag
from ..admin.message_query import DEFAULT_LIMIT, FoundMessages
from ..cluster.every_group import Silent
from ..cluster.topic_route import BrokerGroup, Node
from ..message import MessageQueue
from .loop_thread import Closing


class Admin(Closing):
    """Administers one cluster. The asyncio Admin describes the methods in full.

    Example:

        with Admin("127.0.0.1:9876") as admin:
            admin.create_topic("orders", queues=8, if_not_exists=True)
            print([topic.name for topic in admin.topics()])
    """

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio Admin."""
        super().__init__()
        self._admin = self._build(lambda: self._make(nameservers, **options))

    def _make(self, nameservers: str | Sequence[str], **options: Any) -> AsyncAdmin:
        return AsyncAdmin(nameservers, **options)

    def groups(self) -> list[BrokerGroup]:
        """Return all broker groups of the cluster with their nodes."""
        return self._thread.call(self._admin.groups())

    def gone_groups(self) -> list[str]:
        """Return the names of broker groups without a running node that were not removed."""
        return self._thread.call(self._admin.gone_groups())

    # --- topics ---------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        queues: int = 0,
        *,
        message_type: str = "normal",
        if_not_exists: bool = False,
        retention_ms: int = 0,
        keep_unread: bool = False,
    ) -> int:
        """Create a topic in every broker group; return its number of queues over all of them."""
        return self._thread.call(
            self._admin.create_topic(
                topic,
                queues,
                message_type=message_type,
                if_not_exists=if_not_exists,
                retention_ms=retention_ms,
                keep_unread=keep_unread,
            )
        )

    def update_topic(
        self, topic: str, *, retention_ms: int | None = None, keep_unread: bool | None = None
    ) -> None:
        """Change how long messages of a topic are visible, or whether retention keeps unread ones."""
        self._thread.call(self._admin.update_topic(topic, retention_ms=retention_ms, keep_unread=keep_unread))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages."""
        self._thread.call(self._admin.delete_topic(topic))

    def topics(self, *, silent: Silent | None = None) -> list[TopicInfo]:
        """Return every topic once, sorted by name."""
        return self._thread.call(self._admin.topics(silent=silent))

    def describe_topic(
        self, topic: str, *, silent: Silent | None = None
    ) -> tuple[TopicInfo, list[tuple[MessageQueue, QueueOffset]]]:
        """Return the topic, and the offsets of its queues in every broker group."""
        return self._thread.call(self._admin.describe_topic(topic, silent=silent))

    def topic_losses(self, topic: str, *, silent: Silent | None = None) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, consumer group) pairs with lost or parked messages of a topic."""
        return self._thread.call(self._admin.topic_losses(topic, silent=silent))

    # --- messages -------------------------------------------------------------------------------------------

    def find_message(self, message_id: str, *, topic: str = "") -> FoundMessages:
        """Return the messages with an id from every broker group."""
        return self._thread.call(self._admin.find_message(message_id, topic=topic))

    def query_messages(
        self, topic: str, *, key: str = "", begin_ms: int = 0, end_ms: int = 0, limit: int = DEFAULT_LIMIT
    ) -> FoundMessages:
        """Return the newest messages of a topic, only those with `key` or of a period if given."""
        return self._thread.call(
            self._admin.query_messages(topic, key=key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)
        )

    # --- consumer groups ------------------------------------------------------------------------------------

    def create_group(
        self,
        name: str,
        *,
        start: str = "earliest",
        max_attempts: int = 0,
        fifo: bool = False,
        if_not_exists: bool = False,
    ) -> None:
        """Create a consumer group."""
        self._thread.call(
            self._admin.create_group(
                name, start=start, max_attempts=max_attempts, fifo=fifo, if_not_exists=if_not_exists
            )
        )

    def delete_group(self, name: str) -> None:
        """Delete a consumer group with its offsets."""
        self._thread.call(self._admin.delete_group(name))

    def consumer_groups(self, *, silent: Silent | None = None) -> list[pb.ConsumerGroupInfo]:
        """Return every consumer group once, sorted by name."""
        return self._thread.call(self._admin.consumer_groups(silent=silent))

    def describe_group(
        self, name: str, topic: str = "", *, silent: Silent | None = None
    ) -> tuple[pb.ConsumerGroupInfo, list[tuple[str, pb.GroupQueueProgress]]]:
        """Return the consumer group, and (broker group, progress) of every queue that it has consumed."""
        return self._thread.call(self._admin.describe_group(name, topic, silent=silent))

    def group_members(self, name: str, *, silent: Silent | None = None) -> list[tuple[str, pb.GroupMember]]:
        """Return (broker group, member) of a consumer group whose members own its queues."""
        return self._thread.call(self._admin.group_members(name, silent=silent))

    def deliveries(
        self, name: str, topic: str = "", *, max_parked: int = 0, silent: Silent | None = None
    ) -> list[tuple[str, pb.GetDeliveriesResponse]]:
        """Return (broker group, leases and parked messages) of a consumer group."""
        return self._thread.call(self._admin.deliveries(name, topic, max_parked=max_parked, silent=silent))

    def release_parked(self, name: str, topic: str = "", *, message_id: str = "") -> int:
        """Deliver parked messages of a consumer group again; return how many."""
        return self._thread.call(self._admin.release_parked(name, topic, message_id=message_id))

    def reset_offsets(self, group: str, topic: str, to: str) -> None:
        """Move a consumer group to "earliest", "latest", or a time in ms since the epoch."""
        self._thread.call(self._admin.reset_offsets(group, topic, to))

    # --- nodes ----------------------------------------------------------------------------------------------

    def status(self, node: Node | str, *, timeout_ms: int = 2000) -> pb.GetStatusResponse:
        """Return the status that one node reports."""
        return self._thread.call(self._admin.status(node, timeout_ms=timeout_ms))

    def transfer_leadership(self, broker_group: str = "", to_node: str = "") -> str:
        """Transfer leadership of a broker group to a node; return the id of the new leader."""
        return self._thread.call(self._admin.transfer_leadership(broker_group, to_node))

    def clean(
        self, *, dry_run: bool = False, older_than_ms: int = 0, even_unexpired: bool = False
    ) -> list[tuple[str, pb.CleanResponse]]:
        """Delete expired segments in every broker group; return (broker group, what was deleted)."""
        return self._thread.call(
            self._admin.clean(dry_run=dry_run, older_than_ms=older_than_ms, even_unexpired=even_unexpired)
        )

    async def _finish(self) -> None:
        await self._admin.close()


class GroupAdmin(Admin):
    """An `Admin` that also changes which broker groups a cluster has. See the asyncio GroupAdmin.

    Example:

        with GroupAdmin("127.0.0.1:9876") as admin:
            admin.add_group("g1")
            print(admin.left("g0").waiting)
    """

    _admin: AsyncGroupAdmin

    def _make(self, nameservers: str | Sequence[str], **options: Any) -> AsyncGroupAdmin:
        return AsyncGroupAdmin(nameservers, **options)

    # --- broker groups --------------------------------------------------------------------------------------

    def group(self, name: str, node: str = "") -> BrokerGroup:
        """Return a broker group. `node` (host:port of a log port): one that no nameserver lists."""
        return self._thread.call(self._admin.group(name, node))

    def add_group(
        self,
        name: str,
        *,
        source: str = "",
        topics: Sequence[str] = (),
        dry_run: bool = False,
        allow_reordering: bool = False,
    ) -> AddedGroup:
        """Give a broker group topics and consumer groups of the others, or only some."""
        return self._thread.call(
            self._admin.add_group(
                name, source=source, topics=topics, dry_run=dry_run, allow_reordering=allow_reordering
            )
        )

    def drain(
        self, name: str, *, allow_reordering: bool = False, even_the_last: bool = False
    ) -> pb.SetBrokerGroupModeResponse:
        """Stop new messages to a broker group; all else goes on."""
        return self._thread.call(
            self._admin.drain(name, allow_reordering=allow_reordering, even_the_last=even_the_last)
        )

    def undrain(
        self, name: str, *, allow_reordering: bool = False, node: str = ""
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a broker group take messages again, including one that was removed."""
        return self._thread.call(self._admin.undrain(name, allow_reordering=allow_reordering, node=node))

    def remove_group(self, name: str, *, force: bool = False) -> pb.SetBrokerGroupModeResponse:
        """Remove a drained and consumed broker group from the cluster. Its nodes keep their data."""
        return self._thread.call(self._admin.remove_group(name, force=force))

    def lost_group(self, name: str) -> LostGroup:
        """Return what is remembered of a broker group without a running node, and would be forgotten."""
        return self._thread.call(self._admin.lost_group(name))

    def forget_group(self, name: str) -> Forgotten:
        """Remove a permanently lost broker group from the lists of all nameservers. May be repeated."""
        return self._thread.call(self._admin.forget_group(name))

    # --- progress of consumers ------------------------------------------------------------------------------

    def left(self, group: BrokerGroup) -> Left:
        """Return what a broker group holds that was not consumed."""
        return self._thread.call(self._admin.left(group))

    def progress(
        self, consumer_group: str = "", topic: str = "", *, broker_group: str = ""
    ) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, progress) of consumer groups in topics; "": all of them."""
        return self._thread.call(self._admin.progress(consumer_group, topic, broker_group=broker_group))

    def lag(self, consumer_group: str = "", topic: str = "", *, queues: bool = False) -> Lag:
        """Return the progress of consumer groups in the broker groups that answer; "": all of them."""
        return self._thread.call(self._admin.lag(consumer_group, topic, queues=queues))
