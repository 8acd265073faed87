"""Lakes on real Spark and real broker groups: archived, killed, compacted, damaged, verified, restored.

LEDGERMQ_LAKE_KILLS=20 kills the driver 20 times instead of 3; LEDGERMQ_LAKE_SEED chooses other points.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")
from ledgermq.client import Message
from ledgermq.client.sync import Admin, Producer
from ledgermq.spark_jobs import register
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake.archive_job import ArchiveOptions, BatchDone, archive, compact
from ledgermq.spark_jobs.lake.broker_ranges import compare
from ledgermq.spark_jobs.lake.lake_command import main
from ledgermq.spark_jobs.lake.lake_folder import FOLDER, LakeFolder
from ledgermq.spark_jobs.lake.lake_verification import LakeVerdict, verify
from ledgermq.spark_jobs.lake.restore_job import RestoreOptions, plan_restore, restore
from ledgermq.spark_jobs.lake.retention_hold import RetentionHold
from ledgermq.spark_jobs.lake.spark_tasks import run_tasks
from tests.integration.cluster import Cluster, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS = int(os.environ.get("LEDGERMQ_LAKE_KILLS", "3"))
SEED = int(os.environ.get("LEDGERMQ_LAKE_SEED", "1"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("lake"), nodes=3) as cluster:
        yield cluster


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def send(
    cluster: Cluster, topic: str, first: int, end: int, *, queues: int = 4, kind: str = "normal"
) -> None:
    """Create a topic, if there is none, and send numbered messages; "fifo": in message groups."""
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(topic, queues=queues, if_not_exists=True, message_type=kind)
    with Producer(cluster.nameserver) as producer:
        producer.send_batch(
            Message(
                topic, f"{n} {'x' * (n % 50)}".encode(), tag=f"t{n % 3}" if n % 4 else "", keys=[f"k{n}"],
                properties={"n": str(n)} if n % 2 else {},
                message_group=f"m{n % 5}" if kind == "fifo" else "",
            )
            for n in range(first, end)
        )  # fmt: skip


def options(cluster: Cluster, root: Path, *topics: str, **more: Any) -> ArchiveOptions:
    return ArchiveOptions(cluster.nameserver, topics, root, **more)


def archived(session: SparkSession, given: ArchiveOptions) -> list[BatchDone]:
    told: list[BatchDone] = []
    assert archive(session, given, told.append, None) == sum(done.messages for done in told)
    return told


def verified(session: SparkSession, root: Path, cluster: Cluster, *topics: str) -> LakeVerdict:
    with LakeFolder.for_reading(root) as lake:
        return verify(
            lake,
            topics or lake.state.topics,
            cluster.nameserver,
            lambda tasks: run_tasks(session, tasks, compare),
        )


def topic_rows(session: SparkSession, cluster: Cluster, topic: str) -> list[Any]:
    frame = session.read.format("ledgermq").options(nameservers=cluster.nameserver, subscribe=topic).load()
    return sorted(frame.collect(), key=lambda row: (row.queue_group, row.queue, row.offset))


def lake_rows(session: SparkSession, root: Path) -> list[Any]:
    """Return the rows as a program reads them that knows nothing of manifests."""
    frame = session.read.parquet(str(root))
    return sorted(frame.collect(), key=lambda row: (row.queue_group, row.queue, row.offset))


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row.asDict() if name not in ("day", "hour")} for row in rows]


def test_topics_are_archived_once_however_often_it_runs(
    session: SparkSession, running: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    send(running, "orders", 0, 1000)
    given = options(running, root, "orders", max_messages=400)
    told = archived(session, given)
    assert [done.messages for done in told] == [400, 400, 200]
    assert set(told[-1].lag) == {f"orders/g0/{queue}" for queue in range(4)}
    assert sum(told[-1].lag.values()) == 0 < sum(told[0].lag.values())
    assert archived(session, given) == []
    send(running, "orders", 1000, 1100)
    send(running, "payments", 0, 50)
    assert (
        sum(done.messages for done in archived(session, options(running, root, "orders", "payments"))) == 150
    )
    found = lake_rows(session, root)
    assert plain([row for row in found if row.topic == "orders"]) == plain(
        topic_rows(session, running, "orders")
    )
    assert sum(row.topic == "payments" for row in found) == 50
    assert {(row.day, row.hour) for row in found} == {
        (row.store_time.date(), row.store_time.hour) for row in found
    }
    verdict = verified(session, root, running)
    assert (verdict.differences, sum(each.compared for each in verdict.queues)) == ([], 1150)
    before = len(list(root.rglob("*.parquet")))
    assert compact(session, root) > 0
    assert len(list(root.rglob("*.parquet"))) < before
    assert lake_rows(session, root) == found
    assert verified(session, root, running).differences == []


def test_a_hold_is_advanced_behind_each_commit(
    session: SparkSession, running: Cluster, tmp_path: Path
) -> None:
    send(running, "held", 0, 300)
    given = options(running, tmp_path / "lake", "held", max_messages=100)
    for end in (300, 400):
        send(running, "held", 300, end)
        hold = RetentionHold(running.nameserver, "lake")
        archive(session, given, lambda done: None, hold)
        with Admin(running.nameserver) as admin:
            ends = {queue: each.end_offset for queue, each in admin.describe_topic("held")[1]}
            assert {each.queue: each.offset for each in admin.holds("held")} == ends
            assert sum(ends.values()) == end


def test_damage_is_found(session: SparkSession, running: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    send(running, "damaged", 0, 600)
    archived(session, options(running, root, "damaged", max_messages=200))
    first, second, third = sorted(root.rglob("*.parquet"))[:3]
    data = first.read_bytes()
    broken = bytearray(data)
    broken[len(data) // 3] ^= 16
    first.write_bytes(broken)
    second.unlink()
    verdict = verified(session, root, running)
    assert len(verdict.damaged_files) == 2
    assert any("it is gone" in text for text in verdict.damaged_files)
    with LakeFolder.for_reading(root) as lake:
        given = RestoreOptions(running.nameserver, "damaged", "damaged")
        plan = plan_restore(lake, given)
        with pytest.raises(SparkJobError, match=r"of the lake is damaged: .* `ledgermq spark"):
            restore(session, plan, given, lambda done, of: None)
    assert len(topic_rows(session, running, "damaged")) == 600
    first.write_bytes(data)
    third.write_bytes(data)
    assert [third.name in text for text in verified(session, root, running).damaged_files] == [False, True]


@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_messages_are_restored_once_in_the_order_of_their_queues(
    session: SparkSession, running: Cluster, tmp_path: Path, kind: str
) -> None:
    root, topic, again = tmp_path / "lake", f"source-{kind}", f"again-{kind}"
    send(running, topic, 0, 900, kind=kind)
    archived(session, options(running, root, topic, max_messages=300))
    with Admin(running.nameserver) as admin:
        admin.create_topic(again, queues=4, message_type=kind)
    given = RestoreOptions(running.nameserver, topic, again)
    with LakeFolder.for_reading(root) as lake:
        plan = plan_restore(lake, given)
        for _ in range(2):
            assert restore(session, plan, given, lambda done, of: None) == 900
    source, found = topic_rows(session, running, topic), topic_rows(session, running, again)

    def contents(rows: Sequence[Any]) -> dict[int, list[Any]]:
        queues = defaultdict(list)
        for row in rows:
            queues[row.queue].append((row.body, row["keys"], row.tag, row.properties, row.message_group))
        return queues

    assert contents(found) == contents(source)
    some = RestoreOptions(running.nameserver, topic, again, offsets={("g0", 1): (3, 8)}, write_id=kind)
    with LakeFolder.for_reading(root) as lake:
        plan = plan_restore(lake, some)
        assert restore(session, plan, some, lambda done, of: None) == 5
    with Admin(running.nameserver) as admin:
        ends = {queue.queue_id: each.end_offset for queue, each in admin.describe_topic(again)[1]}
    added = {queue: ends[queue] - len(contents(source)[queue]) for queue in ends}
    assert added == {0: 0, 1: 5, 2: 0, 3: 0}


def test_lakes_that_do_not_belong_to_the_topic_are_refused(
    session: SparkSession, running: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lake"
    send(running, "made", 0, 20)
    send(running, "other", 0, 20)
    archived(session, options(running, root, "made"))

    def refusal(topic: str, path: Path) -> str:
        assert main(["archive", topic, "--to", str(path), "--nameserver", running.nameserver]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        return shown.err

    assert 'topic "mad" does not exist' in refusal("mad", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert "the lake holds made, not other" in refusal("other", root)
    assert "is no lake and not empty" in refusal("made", tmp_path)
    with Admin(running.nameserver) as admin:
        admin.delete_topic("made")
    send(running, "made", 0, 30)
    assert 'topic "made" was deleted and created again' in refusal("made", root)
    with Cluster(tmp_path / "cluster", nodes=1) as another:
        send(another, "made", 0, 30)
        arguments = ["archive", "made", "--to", str(root), "--nameserver", another.nameserver]
        assert main(arguments) == 2
        assert "the lake was made from another cluster" in capsys.readouterr().err


def test_what_retention_took_is_an_error_or_a_gap(session: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    settings = {"segment-size": "1MiB", "max-message-bytes": "128KiB", "max-store-bytes": "6MiB"}
    with Cluster(tmp_path / "cluster", nodes=3, settings=settings) as cluster:
        send(cluster, "short", 0, 10, queues=1)
        archived(session, options(cluster, root, "short"))
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:

            def begin() -> int:
                return admin.describe_topic("short")[1][0][1].begin_offset

            end = time.monotonic() + 60
            while begin() <= 10 and time.monotonic() < end:
                producer.send(Message("short", os.urandom(100_000)))
            assert begin() > 10
        with pytest.raises(SparkJobError, match=r"offsets 10 to [\d,]+ .* were deleted by retention"):
            archived(session, options(cluster, root, "short"))
        archived(session, options(cluster, root, "short", fail_on_data_loss=False))
        (queue,) = verified(session, root, cluster).queues
        assert queue.differences == []
        assert queue.gaps > 0
        assert queue.archived + queue.gaps == queue.end
        assert queue.gone >= 10


class ArchiveProcess:
    """`ledgermq spark archive --every`, with its JVM and workers in a process group of their own."""

    def __init__(self, cluster: Cluster, root: Path, log: Path) -> None:
        arguments = [
            sys.executable, "-m", "ledgermq.spark_jobs.lake.lake_command", "archive", "live",
            "--to", str(root), "--every", "0.1", "--max-messages", "300", "--local", "2", "--nameserver",
            cluster.nameserver,
        ]  # fmt: skip
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(arguments, stdout=output, stderr=output, start_new_session=True)

    def kill(self) -> None:
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def commits(root: Path) -> int:
    """Return the number of the newest commit."""
    log = root / FOLDER / "log"
    names = [path.name for path in log.iterdir()] if log.exists() else []
    return max((int(name[:20]) for name in names if name[:20].isdecimal()), default=-1)


@pytest.mark.timeout(300 + 150 * KILLS)
def test_each_message_is_archived_once_whenever_the_driver_is_killed(
    session: SparkSession, running: Cluster, tmp_path: Path
) -> None:
    choose = random.Random(SEED)
    root, sent = tmp_path / "lake", 2000
    send(running, "live", 0, sent)
    for kill in range(KILLS):
        before = commits(root)
        job = ArchiveProcess(running, root, tmp_path / "job.log")
        try:
            at = max(before, 0) + choose.randrange(1, 4)
            moment = ("commit", "staged", "later")[kill % 3]

            def is_due(at: int = at, moment: str = moment, job: ArchiveProcess = job) -> bool:
                assert job.popen.poll() is None, job.log.read_text()[-3000:]
                if moment == "staged":
                    return commits(root) >= at - 1 and any((root / FOLDER / "staging").glob("*/*.part"))
                return commits(root) >= at

            wait_until(is_due, f"commit {at} is there", timeout=300)
            if moment == "later":
                time.sleep(choose.random() * 0.3)
        finally:
            job.kill()
        found = plain(lake_rows(session, root)) if any(root.rglob("*.parquet")) else []
        keys = [(row["queue"], row["offset"]) for row in found]
        assert len(keys) == len(set(keys)), "a plain reader sees a message twice"
        send(running, "live", sent, sent + 700)
        sent += 700
    archived(session, options(running, root, "live"))
    assert plain(lake_rows(session, root)) == plain(topic_rows(session, running, "live"))
    verdict = verified(session, root, running)
    assert (verdict.differences, sum(each.compared for each in verdict.queues)) == ([], sent)
