"""SendMessage at the leader: check, encode once, append, answer each entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.varint import varint
from ledgermq.raft.errors import EntryTooLargeError

from ..cluster.slaves import SlaveGate, SlavesAwayError, SlaveTimeoutError
from ..config import BrokerConfig
from ..leader.leader_view import Verdict
from ..leader.pipeline import AppendPipeline, SendWork, SentMessage
from ..metrics import Metrics
from ..refusals import DRAINING_TEXT
from ..service.creation import Creation
from ..state.topics import Topic
from ..wire.official import OutgoingRecord, outgoing_record
from ..wire.route import accepted_types
from ..wire.status import StatusError, ok, overall, topic_not_found
from ..wire.validation import check_messages, derived_type

_STORED: Final = (Verdict.ACCEPTED, Verdict.DUPLICATE)
_NOT_BUILT: Final = {v2.DELAY: "delayed messages", v2.TRANSACTION: "transactions"}


#: The encoded field `status` of an answer and of its entries on success.
_STATUS_OK: Final = b"\x0a" + varint(ok().ByteSize()) + ok().SerializeToString()


@dataclass(eq=False, repr=False)
class Sends:
    """Serves SendMessage. `slaves`: slaves that an answer waits for besides commit (sync_master)."""

    _config: BrokerConfig
    _pipeline: AppendPipeline
    _creation: Creation
    _slaves: SlaveGate | None
    _metrics: Metrics

    async def send(self, request: v2.SendMessageRequest, remaining: float | None = None) -> bytes:
        """Store the messages; return the encoded answer once they are as durable as configured.

        `remaining`: seconds until the answer must be sent. Raises: StatusError, and what the pipeline
        raises.
        """
        name = check_messages(request.messages, self._config.max_message_bytes)
        if refused := self._pipeline.produce_refusal:
            raise StatusError(v2.TOO_MANY_REQUESTS, refused)
        topic = await self._creation.ensure_topic(name)
        if topic is None:
            raise topic_not_found(name)
        ids = [message.system_properties.message_id for message in request.messages]
        work = SendWork(topic, _records(topic, request))
        try:
            self._pipeline.submit(work)
            placed: list[SentMessage] = await work.future
            if self._slaves is not None:
                await self._slaves.wait(work.index, work.committed_at, remaining)
        except SlaveTimeoutError as error:
            raise StatusError(v2.SLAVE_PERSISTENCE_TIMEOUT, str(error)) from None
        except SlavesAwayError as error:
            raise StatusError(v2.HA_NOT_AVAILABLE, str(error)) from None
        except EntryTooLargeError as error:
            raise StatusError(v2.PAYLOAD_TOO_LARGE, str(error)) from None
        duplicates = sum([sent.verdict is Verdict.DUPLICATE for sent in placed])
        self._metrics.messages_sent.inc(len(ids) - duplicates)
        if duplicates:
            self._metrics.duplicates.labels("messaging").inc(duplicates)
        if len(placed) == 1 and placed[0].verdict in _STORED:
            return answer_of_one(ids[0], placed[0].offset)
        broker_group = self._config.group
        entries = [
            _entry(message_id, sent, broker_group) for message_id, sent in zip(ids, placed, strict=True)
        ]
        answer = v2.SendMessageResponse(status=overall([entry.status for entry in entries]), entries=entries)
        return bytes(answer.SerializeToString())


def answer_of_one(message_id: str, offset: int) -> bytes:
    """Return the encoded SendMessageResponse of one stored message.

    It builds no protobuf object for the parts.
    """
    name = message_id.encode()
    size = varint(len(name))
    place = b"\x20" + varint(offset) if offset > 0 else b""
    entry = b"".join((_STATUS_OK, b"\x12", size, name, b"\x1a", size, name, place))
    return b"".join((_STATUS_OK, b"\x12", varint(len(entry)), entry))


def _records(topic: Topic, request: v2.SendMessageRequest) -> list[tuple[OutgoingRecord, str]]:
    """Check the messages' types against the topic, and extract records. A batch ignores message groups."""
    accepted, found = accepted_types(int(topic.message_type)), []
    alone = len(request.messages) == 1
    for message in request.messages:
        system = message.system_properties
        kind = derived_type(system)
        if kind in _NOT_BUILT:
            raise StatusError(v2.NOT_IMPLEMENTED, f"{_NOT_BUILT[kind]} are not built yet")
        if kind not in accepted:
            raise StatusError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"a {v2.MessageType.Name(kind)} message cannot be sent to topic {topic.name}, "
                f"which takes {topic.message_type.name} messages",
            )
        message_group = system.message_group if alone else ""
        found.append((outgoing_record(message, kind), message_group))
    return found


def _entry(message_id: str, sent: SentMessage, broker_group: str) -> v2.SendResultEntry:
    if sent.verdict is Verdict.DRAINING:  # the code of RocketMQ for a broker without write permission
        status = v2.Status(code=v2.FORBIDDEN, message=DRAINING_TEXT.format(group=broker_group))
        return v2.SendResultEntry(status=status, message_id=message_id)
    if sent.verdict not in _STORED:
        status = v2.Status(
            code=v2.TOPIC_NOT_FOUND, message="the topic was deleted while the message was sent"
        )
        return v2.SendResultEntry(status=status, message_id=message_id)
    return v2.SendResultEntry(
        status=ok(), message_id=message_id, transaction_id=message_id, offset=max(sent.offset, 0)
    )
