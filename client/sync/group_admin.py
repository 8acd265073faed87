"""Growing and shrinking a cluster by broker groups, without asyncio.

    with GroupAdmin("127.0.0.1:9876") as admin:
        admin.add_group("g1")
        admin.drain("g0")

Owns: nothing but the way to its asyncio twin, whose methods it has, with the same words and errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.proto import admin_pb2 as pb

from ..admin.broker_groups import AddedGroup, Left
from ..admin.broker_groups import GroupAdmin as AsyncGroupAdmin
from ..admin.consumer_progress import Lag
from ..admin.forget_broker_group import Forgotten, LostGroup
from ..cluster.topic_route import BrokerGroup
from .admin import Admin


class GroupAdmin(Admin):
    """An `Admin` that also changes which broker groups a cluster has; for what a method does see the asyncio GroupAdmin."""

    _admin: AsyncGroupAdmin

    def _make(self, nameservers: str | Sequence[str], **options: Any) -> AsyncGroupAdmin:
        return AsyncGroupAdmin(nameservers, **options)

    # --- which groups there are -------------------------------------------------------------------------------

    def group(self, name: str, node: str = "") -> BrokerGroup:
        """Return a broker group; `node` (host:port of a log port): one that no nameserver lists."""
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
        """Give a group the topics and consumer groups of the others, or only some."""
        return self._thread.call(
            self._admin.add_group(
                name, source=source, topics=topics, dry_run=dry_run, allow_reordering=allow_reordering
            )
        )

    def drain(
        self, name: str, *, allow_reordering: bool = False, even_the_last: bool = False
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a group take no new messages; all else goes on."""
        return self._thread.call(
            self._admin.drain(name, allow_reordering=allow_reordering, even_the_last=even_the_last)
        )

    def undrain(
        self, name: str, *, allow_reordering: bool = False, node: str = ""
    ) -> pb.SetBrokerGroupModeResponse:
        """Let a group take messages again, also one that was removed."""
        return self._thread.call(self._admin.undrain(name, allow_reordering=allow_reordering, node=node))

    def remove_group(self, name: str, *, force: bool = False) -> pb.SetBrokerGroupModeResponse:
        """Take a drained and consumed group out of the cluster. Its nodes keep their data."""
        return self._thread.call(self._admin.remove_group(name, force=force))

    def lost_group(self, name: str) -> LostGroup:
        """Return what is remembered of a group of which no node is up, and would be forgotten."""
        return self._thread.call(self._admin.lost_group(name))

    def forget_group(self, name: str) -> Forgotten:
        """Take a group that is lost for good off the lists of all nameservers. May be repeated."""
        return self._thread.call(self._admin.forget_group(name))

    # --- how far consumers are --------------------------------------------------------------------------------

    def left(self, group: BrokerGroup) -> Left:
        """Return what a group holds that was not consumed."""
        return self._thread.call(self._admin.left(group))

    def progress(
        self, consumer_group: str = "", topic: str = "", *, broker_group: str = ""
    ) -> list[tuple[str, pb.TopicProgress]]:
        """Return (broker group, progress) of consumer groups in topics; "" is all of them."""
        return self._thread.call(self._admin.progress(consumer_group, topic, broker_group=broker_group))

    def lag(self, consumer_group: str = "", topic: str = "", *, queues: bool = False) -> Lag:
        """Return how far consumer groups are in the broker groups that answer; "" is all of them."""
        return self._thread.call(self._admin.lag(consumer_group, topic, queues=queues))
