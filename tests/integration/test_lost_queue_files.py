"""A one-node broker group loses its queue files after retention: it rebuilds them with the same content."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from ledgermq.broker.backup import stream as dump

from .cluster import Cluster, wait_until
from .history import describe_topic, read_topic
from .replica_checks import check
from .test_retention import SMALL, at, gone, segments_of


def test_queue_files_that_were_deleted_come_back_from_a_trimmed_log_without_any_other_node(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path / "cluster", nodes=1, settings=SMALL | {"max-store-bytes": "24MiB"}) as cluster:
        with at(cluster) as group:
            topic = group.topic().topic_id
            for round_ in range(2):  # segments go as far as the older checkpoint reaches
                group.produce_all(topic, 50)
                first = segments_of(cluster, "n1")[round_]
                group.clean(even_unexpired=True)
                wait_until(partial(gone, cluster, first), "segments are deleted")
            begin = group.offsets().begin_offset
            assert begin > 0
            stored = read_topic(cluster.address("n1"), describe_topic(cluster.address("n1"), "t"))
        cluster.terminate("n1")
        data = tmp_path / "cluster" / "n1"
        for folder in ("consumequeue", "keyindex", "entryindex"):
            shutil.rmtree(data / folder)
        cluster.restart("n1")
        cluster.wait_leader()
        assert "making them again from the log" in cluster.nodes["n1"].log(1000)
        assert read_topic(cluster.address("n1"), describe_topic(cluster.address("n1"), "t")) == stored
        with at(cluster) as group:
            assert group.offsets().begin_offset == begin
            group.produce_all(topic, 3)
        cluster.terminate("n1")
        # The folder as it lies there: also what stands in for units below the begin must be no finding.
        assert dump.main(["--data", str(data), "--out", str(tmp_path / "dumps" / "n1")]) == 0
        checked = check(tmp_path / "dumps")
        assert checked.returncode == 0, checked.stdout + checked.stderr
