"""docs/seeds.md, the table of what the seed articles say: every row is there, has evidence, and gives the
numbers that hold.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.cluster import registration
from ledgermq.broker.config import MAX_SEGMENT_SIZE, BrokerConfig
from ledgermq.broker.native.membership import SESSION_TIMEOUT_MS
from ledgermq.broker.ports.port_policy import CLIENT_SOCKET_OPTIONS, PortPolicy
from ledgermq.broker.service import disk_steps
from ledgermq.broker.service.telemetry import LONG_POLLING_SECONDS
from ledgermq.broker.state import consume_queue
from ledgermq.client import PushOptions, pauses
from ledgermq.client.cluster import routes
from ledgermq.client.produce import encoding, latency_fault
from ledgermq.nameserver import config as nameserver_config
from ledgermq.nameserver import route_table
from ledgermq.proto.record import MAX_BODY_SIZE
from ledgermq.raft.folder.storage import StorageConfig
from ledgermq.raft.log import commit_log
from ledgermq.raft.ports import acceptor
from ledgermq.raft.ports import front as port_front

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/seeds.md").read_text()
#: How many rows the inventory of the articles has in each part. A9: what they contradict each other in. E:
#: what users complain of.
PARTS = {"A1": 19, "A2": 13, "A3": 25, "A4": 18, "A5": 15, "A6": 7, "A7": 7, "A8": 4, "A9": 12, "E": 25}
#: Parts whose rows all stand in an article.
ARTICLES = ("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A9")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
    for line in PAGE.splitlines()
    if re.match(r"\| (A\d\.|E)\d+ \|", line)
]
_VERDICT = re.compile(r"(as written|better|different|not shown|not yet)\b")
_FILE = re.compile(r"`((?:broker|client|nameserver|proto|raft|bench|examples)/[\w/]*(?:\.\w+)?)`")


def row(name: str) -> list[str]:
    (found,) = [cells for cells in ROWS if cells[0] == name]
    return found


def test_every_row_of_the_inventory_is_there_once_and_in_order() -> None:
    separator = {"E": ""}
    expected = [
        f"{part}{separator.get(part, '.')}{number}"
        for part, count in PARTS.items()
        for number in range(1, count + 1)
    ]
    assert [cells[0] for cells in ROWS] == expected


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: cells[0])
def test_a_row_has_a_verdict_with_its_reason_and_evidence(cells: list[str]) -> None:
    name, seed, rule, here, tests, verdict = cells
    assert rule and here
    assert re.fullmatch(r"[0-4](, [0-4])*" if name[:2] in ARTICLES else r"\u2013|[0-4](, [0-4])*", seed), (
        "file numbers of articles"
    )
    found = _VERDICT.match(verdict)
    assert found, verdict
    if found[1] == "not yet":
        assert re.match(r"not yet \(\w[\w -]+\)", verdict), "it says what it waits for"
        return
    if found[1] == "not shown":
        assert len(verdict.partition(":")[2]) > 20, "it says what was not measured"
        return
    assert re.search(r"`(?:\w+/)*test_\w+\.py`", tests), "a test shows it"
    if found[1] == "different":
        assert len(verdict.partition(":")[2]) > 20, "different on purpose, so it says why"


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: cells[0])
def test_the_places_that_a_row_names_exist(cells: list[str]) -> None:
    for name in _FILE.findall(cells[3]):
        assert (ROOT / name).exists(), name


def _default(settings: Any, name: str) -> Any:
    return {each.name: each.default for each in fields(settings)}[name]


_SETTINGS = BrokerConfig()
_LIMITS = PushOptions().limits
_POLICY = PortPolicy()
_KERNEL = {option: value for _, option, value in CLIENT_SOCKET_OPTIONS}
#: By row: what the code says, what it is to say, and how the row puts it.
NUMBERS: list[tuple[str, Any, Any, str]] = [
    ("A1.1", nameserver_config.resolve({}, {}, {}).listeners["default"], "127.0.0.1:9876", "9876"),
    ("A1.3", registration.REGISTER_INTERVAL, 30, "every 30 s"),
    ("A1.3", registration.BEAT_INTERVAL, 1, "each second"),
    ("A1.3", route_table.EXPIRY_MS, 10_000, "after 10 s"),
    ("A1.9", _SETTINGS.queues_per_topic, 4, "queues_per_topic = 4"),
    ("A1.12", routes.CACHE_S, 30, "30 s"),
    ("A2.3", (latency_fault._ALIKE_FACTOR, latency_fault._ALIKE_MS), (2, 5), "a factor of 2 or 5 ms"),
    ("A2.3", latency_fault._STALE_MS, 3000, "every 3 s"),
    ("A2.4", tuple(latency_fault.SEED_TABLE), ((500, 3000),), "[(500, 3000)]"),
    ("A2.8", encoding.COMPRESS_ABOVE, 4096, "4 KiB"),
    ("A2.8", MAX_BODY_SIZE, 4 << 20, "4 MiB"),
    ("A3.2", _SETTINGS.segment_size, 1 << 30, "1 GiB"),
    ("A3.5", _SETTINGS.flush, "sync", "`flush = sync`"),
    ("A3.8", consume_queue.UNIT_SIZE, 20, "20-byte"),
    ("A3.9", consume_queue.UNITS_PER_FILE, 300_000, "300,000"),
    ("A3.14", consume_queue._CACHED_BLOCKS, 256, "256 blocks"),
    ("A3.15", _default(StorageConfig, "flush_interval_ms"), 500, "500 ms"),
    ("A3.15", _default(StorageConfig, "flush_bytes"), 8 << 20, "8 MiB"),
    ("A3.20", MAX_SEGMENT_SIZE, 4 << 30, "4 GiB"),
    ("A3.21", commit_log._PREPARE_AT, 4, "a quarter"),
    ("A4.1", _SETTINGS.slave_timeout_ms, 3000, "3 s"),
    ("A4.8", _SETTINGS.replication, "quorum", "`replication = quorum` (default)"),
    ("A5.5", (SESSION_TIMEOUT_MS, PushOptions().session_timeout_ms), (3000, 3000), "3 s"),
    ("A5.7", PushOptions().poll_ms, 15_000, "15 s"),
    ("A5.7", pauses.POLL_MS, 10_000, "10 s"),
    ("A5.7", LONG_POLLING_SECONDS, 20, "20 s"),
    ("A5.8", (_LIMITS.messages, _LIMITS.bytes, _LIMITS.span), (1000, 100 << 20, 2000),
     "1,000 messages, 100 MiB and 2,000"),
    ("A5.8", PushOptions().max_bytes, 256 << 20, "256 MiB"),
    ("A5.12", PushOptions().commit_interval_ms, 100, "100 ms"),
    ("A5.14", _SETTINGS.access_message_in_memory_max_ratio, 40, "40 %"),
    ("A5.14", _SETTINGS.follower_reads, True, "On by default"),
    ("A6.1", (_POLICY.idle_ms, _SETTINGS.connection_idle_seconds), (600_000, 600), "600 s"),
    ("A6.1", _POLICY.ask_ms + _POLICY.answer_ms, 80_000, "80 s"),
    ("A6.1", _KERNEL["TCP_USER_TIMEOUT"], 90_000, "90 s"),
    ("A6.2", acceptor.ACCEPTS_PER_TURN, 16, "16 connections"),
    ("A6.4", port_front.TLS_HELLOS_AT_ONCE, 8, "8 whole hellos"),
    ("A6.4", port_front.FIRST_BYTES_TIMEOUT_S, 10, "10 s"),
    ("A7.2", _SETTINGS.clean_at, "04:00", "`clean_at`, 04:00"),
    ("A7.3", disk_steps.LIMITS[disk_steps.DiskStep.DELETE_EXPIRED], 0.75, "75 %"),
    ("A7.4", disk_steps.LIMITS[disk_steps.DiskStep.DELETE_OLDEST], 0.85, "85 %"),
    ("A7.4", disk_steps.LIMITS[disk_steps.DiskStep.REFUSE_MESSAGES], 0.9, "90 %"),
    ("A7.4", disk_steps.LIMITS[disk_steps.DiskStep.REFUSE_WRITES], 0.95, "95 %"),
    ("A7.5", _SETTINGS.retention_hours, 72, "72 h"),
    ("A9.7", _SETTINGS.election_timeout_ms, (400, 800), "400 to 800"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "found", "told", "words"), NUMBERS, ids=lambda each: str(each)[:30])
def test_the_numbers_that_rows_tell_are_those_of_the_code(
    name: str, found: Any, told: Any, words: str
) -> None:
    assert found == told
    assert words in " | ".join(row(name)), f"row {name} says {words}"


def test_who_comes_from_rocketmq_finds_the_words_of_the_articles() -> None:
    """docs/coming-from-rocketmq.md says of each what it is here."""
    page = (ROOT / "docs/coming-from-rocketmq.md").read_text()
    words = """
        NameServer brokerId brokerRole DLedger CommitLog ConsumeQueue IndexFile topics.json
        consumerOffset.json DefaultMQProducer sendOneway MessageQueueSelector SelectMessageQueueByRandom
        SelectMessageQueueByHash SelectMessageQueueByMachineRoom setSendLatencyFaultEnable
        setRetryTimesWhenSendFailed setCompressMsgBodyOverHowmuch SendResult DefaultMQPushConsumer
        MessageListenerConcurrently MessageListenerOrderly DefaultLitePullConsumer SimpleConsumer BROADCASTING
        setConsumeFromWhere setAllocateMessageQueueStrategy setBrokerSuspendMaxTimeMillis %RETRY% %DLQ%
        flushDiskType slaveReadEnable accessMessageInMemoryMaxRatio autoCreateTopicEnable fileReservedTime
        deleteWhen warmMapedFileEnable sendMessageThreadPoolNums serverChannelMaxIdleTimeSeconds
        enableMsgTrace queryMsgByKey updateTopic wipeWritePerm resetOffsetByTime dashboard
    """
    missing = [word for word in words.split() if word not in page]
    assert not missing, missing
