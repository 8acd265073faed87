"""What the comparison with peers makes of its rows: tables, plots, options. On made figures; no peer is
needed.
"""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import run as comparison
from bench.peers.measure import descriptors, files_of
from bench.peers.plots import write_plots
from bench.peers.ratios import ratio_table
from bench.peers.table import table

PNG = b"\x89PNG\r\n\x1a\n"


def row(system: str, workload: str, rate: float, run: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "system": system,
        "version": "1.2",
        "acknowledged": "a majority has flushed it",
        "workload": workload,
        "run": run,
        "rate": rate,
        "client_ms_per_1000": 10.0,
        "server_ms_per_1000": [3.0, 9.0, 6.0],
        "rss_anon_mib": [70.0, 90.0, 80.0],
        **more,
    }


ROWS = [
    *(row("LedgerMQ", "W1", 1000, run, p50_ms=1.0 + run, p99_ms=4.0) for run in range(3)),
    *(row("RabbitMQ", "W1", 900, run, p50_ms=2.0, p99_ms=5.0) for run in range(3)),
    *(row("LedgerMQ", "W3 1 KiB", rate, run) for run, rate in enumerate((90_000, 110_000, 100_000))),
    *(row("LedgerMQ", "W3 1 KiB, send_batch", 150_000, run) for run in range(3)),
    row("RabbitMQ", "W3 1 KiB, leanest client", 20_000),
    row("gRPC echo", "W6, empty handler", 5000, server_ms_per_1000=[200.0], rss_anon_mib=[]),
    row("LedgerMQ", "W6, at the leader", 4000, echo_ratio=0.8),
    row("LedgerMQ", "bodies of 1 MiB", 200, payload_mib_s=200.0, bandwidth_ratio=0.75),
    row("LedgerMQ", "10,000 queues", 80_000, few_queues_ratio=0.9, files=[5, 7, 6],
        disk_mib=[1.0, 2.0, 3.0], descriptors=[40, 99, 41]),
    *(row("LedgerMQ", "failover", 100, gap_ms=gap) for gap in (90.0, 110.0)),
]  # fmt: skip


def lines_of(workload: str) -> list[list[str]]:
    """Return the cells of a workload's table, without the line under its head."""
    text = table(ROWS).split(f"### {workload}\n")[1].split("###")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    assert len({len(line) for line in found}) == 1
    return [found[0], *found[2:]]


def test_rates_are_medians_with_their_spread_and_nodes_come_busiest_first() -> None:
    head, ours = lines_of("W3 1 KiB")
    cells = dict(zip(head, ours, strict=True))
    assert cells["system"] == "LedgerMQ 1.2"
    assert cells["msg/s (min-max)"] == "100,000 (90,000-110,000)"
    assert cells["CPU ms per 1,000, each node"] == "9 / 6 / 3"
    assert (cells["client"], cells["p50 ms"]) == ("10", "-")


def test_tables_say_what_an_acknowledgement_means_of_older_raw_files_as_far_as_they_know() -> None:
    assert lines_of("W1")[1][1] == "a majority has flushed it"
    older = row("LedgerMQ", "W1", 1000, fsync="yes, batched")
    del older["acknowledged"]
    assert "| LedgerMQ 1.2 | fsync: yes, batched | 1,000 " in table([older])


def test_systems_of_a_workload_stand_under_each_other() -> None:
    head, ours, theirs = lines_of("W1")
    assert [line[head.index("p50 ms")] for line in (ours, theirs)] == ["2.00", "2.00"]
    assert [line[0] for line in (ours, theirs)] == ["LedgerMQ 1.2", "RabbitMQ 1.2"]


@pytest.mark.parametrize(
    ("workload", "column", "value"),
    [
        ("W6, at the leader", "x echo", "0.80"),
        ("bodies of 1 MiB", "payload x 3 hops / echo bandwidth", "0.75"),
        ("bodies of 1 MiB", "payload MiB/s", "200"),
        ("10,000 queues", "x 8 queues", "0.90"),
        ("10,000 queues", "files, each node", "7 / 6 / 5"),
        ("10,000 queues", "descriptors", "99 / 41 / 40"),
        ("failover", "min-max ms", "90-110"),
    ],
)
def test_columns_that_only_some_workloads_have_are_shown_there(
    workload: str, column: str, value: str
) -> None:
    head, ours = lines_of(workload)
    assert ours[head.index(column)] == value
    assert column not in lines_of("W3 1 KiB")[0]


def test_ratios_are_those_of_each_run_to_the_best_way_of_a_peer() -> None:
    rows = [
        *(row("LedgerMQ", "W3 1 KiB", rate, run) for run, rate in enumerate((80_000, 100_000, 90_000))),
        *(row("LedgerMQ", "W3 1 KiB, send_batch", 160_000, run) for run in range(3)),
        *(row("RabbitMQ", "W3 1 KiB", 5_000, run) for run in range(3)),
        *(row("RabbitMQ", "W3 1 KiB, leanest client", rate, run)
          for run, rate in enumerate((20_000, 20_000, 30_000))),
        row("LedgerMQ", "W1", 1000, p50_ms=0.9),
        row("RabbitMQ", "W1", 1000, p50_ms=1.0),
        *(row("LedgerMQ", "failover", 1, gap_ms=gap) for gap in (90.0, 100.0, 110.0)),
        *(row("RabbitMQ", "failover", 1, gap_ms=gap) for gap in (300.0, 400.0, 500.0)),
        row("gRPC echo", "W6, empty handler", 5000),
    ]  # fmt: skip
    assert ratio_table(rows).splitlines()[2:] == [
        "| system | workload | figure | / RabbitMQ 1.2 |",
        "|---|---|---|---|",
        "| LedgerMQ | W3 1 KiB | 90,000 msg/s | 4.00 (3.00-5.00) |",
        "| LedgerMQ | W3 1 KiB, send_batch | 160,000 msg/s | 8.00 (5.33-8.00) |",
        "| LedgerMQ | W1 | 0.90 p50 ms, less is better | 0.90 (0.90-0.90) |",
        "| LedgerMQ | failover | 100 gap ms, less is better | 0.25 (0.25-0.25) |",
    ]
    assert ratio_table([each for each in rows if each["system"] != "RabbitMQ"]) == ""


def test_plots_are_pictures_with_versions_units_and_variants(tmp_path: Path) -> None:
    written = write_plots(tmp_path / "plots", ROWS, "three runs")
    names = {path.name for path in written}
    assert names == {
        f"{name}.{kind}" for name in ("throughput", "latency", "write-gap") for kind in ("png", "svg")
    }
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    throughput = (tmp_path / "plots" / "throughput.svg").read_text()
    for text in (
        "LedgerMQ 1.2, send_batch",
        "RabbitMQ 1.2, leanest client",
        "messages/s",
        "150,000",
        "three runs",
    ):
        assert text in throughput
    assert "W1 p99" in (tmp_path / "plots" / "latency.svg").read_text()


def test_tables_and_plots_of_a_result_file_need_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    comparison.write(Namespace(out=result, seconds=20.0, warm_up=3.0, preload=1000), ROWS)
    written = json.loads(result.read_text())
    assert written["rows"] == json.loads(json.dumps(ROWS))
    assert (written["seconds"], written["warm_up_s"], written["preload"]) == (20.0, 3.0, 1000)
    markdown = tmp_path / "tables.md"
    plots = tmp_path / "plots"
    comparison.main(["--table", str(result), "--markdown", str(markdown), "--plots", str(plots)])
    assert markdown.read_text() == table(ROWS) + "\n" + ratio_table(ROWS)
    assert "### W3 1 KiB, send_batch" in capsys.readouterr().out
    assert len(list(plots.iterdir())) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workloads", "W9"], "unknown: W9; choose from W1, W2"),
        (["--systems", "etcd"], "unknown: etcd; choose from ledgermq, ledgermq-async_timed"),
        (["--systems", ","], "nothing is named"),
        (["--runs", "0"], "--runs and --preload begin at 1"),
    ],
)
def test_bad_options_are_refused_with_the_known_ones(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        comparison.parse(options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_workloads_and_systems_are_chosen_by_name() -> None:
    options = comparison.parse(["--workloads", "W6, bodies", "--systems", "ledgermq-async_notify"])
    assert (options.workloads, options.systems) == (["W6", "bodies"], ["ledgermq-async_notify"])
    system = comparison.make("ledgermq-async_notify")
    assert system.name == "LedgerMQ flush=async_notify"
    assert system.acknowledged == "a majority has it in its page cache, flushed at once after it"


def test_files_and_descriptors_are_counted(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "0").write_bytes(bytes(1 << 20))
    (tmp_path / "1").touch()
    count, mib = files_of(tmp_path)
    assert count == 2 and 1 <= mib < 2
    before = descriptors([os.getpid()])[0]
    with (tmp_path / "1").open():
        assert descriptors([os.getpid()]) == [before + 1]
