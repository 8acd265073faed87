"""`ledgermq bench`: its options, table, JSON, plots, and what it says to bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.bench.figures import Figures, Recorder
from ledgermq.client.bench.plots import write_plots
from ledgermq.client.bench.workloads import TITLES
from ledgermq.client.cli import run_cli
from ledgermq.proto import route_pb2 as pb

from ..fake_messaging import MessagingCluster
from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served[MessagingCluster]]:
    monkeypatch.setenv("COLUMNS", "200")
    with served(lambda: MessagingCluster(FakeGroup())) as found:
        monkeypatch.setenv("LEDGERMQ_NAMESERVER", found.address)
        yield found


def test_the_command_uses_a_topic_of_its_own_and_deletes_it(
    running: Served[MessagingCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "-w", "w5", "--seconds", "0.5", "--size", "16"]
    assert run_cli(command) == 0
    captured = capsys.readouterr()
    assert "send to receive" in captured.out and "P99.9 MS" in captured.out
    assert captured.err == "W5 send to receive …\n"
    assert running.cluster.groups[0].topics == {}
    node = running.cluster.node()
    node.refusals.extend([pb.Refusal(code=pb.INVALID_ARGUMENT, message="no")] * 500)
    assert run_cli([*command, "--json", "-"]) == 1
    assert capsys.readouterr().err == "error: no.\n"
    assert running.cluster.groups[0].topics == {}
    node.refusals.clear()
    running.call(running.cluster.groups[0].create_topic, "kept", 1)
    running.call(running.cluster.register, running.cluster.groups[0])
    assert run_cli([*command, "--json", "-", "--topic", "kept"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["workloads"][0]["messages"] == 250
    assert (document["topic"], document["queues"]) == ("kept", 1)
    assert "kept" in running.cluster.groups[0].topics


def test_the_document_says_what_was_measured_where_and_how(
    running: Served[MessagingCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    command = ["bench", "--seconds", "1.5", "--warm-up", "0", "--size", "16", "--in-flight", "64"]
    assert run_cli([*command, "--batch", "16", "--json", str(file), "--queues", "2"]) == 0
    assert "Latencies of W2 and W3 are those of batches of 16." in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert [each["workload"] for each in document["workloads"]] == list(TITLES)
    assert document["versions"]["ledgermq"] and document["versions"]["python"]
    assert document["machine"]["cores"] == os.cpu_count()
    assert document["cluster"] == [{"group": "g0", "nodes": ["n1"], "leader": "n1"}]
    assert (document["queues"], document["settings"]["batch"], document["settings"]["size"]) == (2, 16, 16)
    for each in document["workloads"]:
        assert each["messages"] > 0 and each["messages_per_second"] > 0
        assert sum(each["series"]) == each["messages"]
    calls = {each["workload"]: each["messages_per_call"] for each in document["workloads"]}
    assert calls == {"W1": 1, "W2": 16, "W3": 16, "W4": 1, "W5": 1, "W6": 1}


def test_plots_are_written_beside_the_table(
    running: Served[MessagingCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "plots"
    assert run_cli(["bench", "-w", "W1,W4", "--seconds", "0.5", "--plots", str(folder)]) == 0
    assert str(folder / "latency.png") in capsys.readouterr().err
    names = ["latency.png", "latency.svg", "throughput.png", "throughput.svg"]
    assert sorted(path.name for path in folder.iterdir()) == names


def made(name: str, count: int = 500) -> Figures:
    """Figures of calls that took 1, 2, … ms, one after the other begin."""
    recorder = Recorder(name, 100, 1)
    recorder.begin(0.0)
    for number in range(count):
        recorder.call(number / count, number / count + (1 + number % 20) / 1000)
    return recorder.finish(1.02, 0.1)


def test_plots_are_pictures_and_name_every_workload_with_units(tmp_path: Path) -> None:
    figures = [made("W1"), made("W3")]
    for path in write_plots(tmp_path, figures, "two cores & a caption"):
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    latency, throughput = ((tmp_path / f"{name}.svg").read_text() for name in ("latency", "throughput"))
    for text in (latency, throughput):
        assert "two cores &amp; a caption" in text
        for name in ("W1", "W3"):
            assert f"{name}  {TITLES[name]}: 500 messages" in text
    assert "latency in ms (logarithmic)" in latency and "p99.9" in latency
    assert "messages/s" in throughput and "mean  490/s" in throughput


def test_a_workload_without_latencies_is_in_the_plot_of_throughput_only(tmp_path: Path) -> None:
    recorder = Recorder("W4", 100, 1)
    recorder.begin(0.0)
    recorder.received(100, 0.11)
    written = write_plots(tmp_path, [recorder.finish(0.12, 0.0)], "")
    assert [path.name for path in written] == ["throughput.png", "throughput.svg"]


@pytest.mark.parametrize(("names", "words"), [("W9", 'no workload "W9"'), (",", "no workload is named")])
def test_an_unknown_workload_is_an_error_with_the_known_ones(
    names: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["bench", "-w", names]) == 1
    printed = capsys.readouterr().err
    assert words in printed
    assert "Choose from W1, W2, W3, W4, W5, W6" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "5000"], "does not fit into 4,000 in flight"),
        (["--in-flight", "10", "--producers", "20"], "--in-flight 20"),
        (["--target", "boss"], "Choose leader or follower"),
        (["--json", "{folder}"], "is a folder. Name a file: --json {folder}/bench.json"),
        (["--json", "{folder}/no/b.json"], "does not exist. Make it first: mkdir -p {folder}/no"),
        (["--plots", "{folder}/file/plots"], "cannot be made: Not a directory. Name another: --plots DIR"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    # Nothing listens at this address: who measured would say so.
    filled = [option.format(folder=tmp_path) for option in options]
    assert run_cli(["bench", "-n", "127.0.0.1:1", *filled]) == 1
    assert words.format(folder=tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--size", "7"), ("--seconds", "0.1"), ("--rate", "0"), ("--batch", "-1")]
)
def test_numbers_out_of_range_are_usage_errors(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["bench", option, value]) == 2
    assert f"'{option}': it must be a" in capsys.readouterr().err


def test_a_missing_plot_library_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "matplotlib" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert run_cli(["bench", "-n", "127.0.0.1:1", "--plots", str(tmp_path / "plots")]) == 1
    printed = capsys.readouterr().err
    assert "--plots needs the module matplotlib" in printed
    assert "pip install 'ledgermq[bench]'" in printed


def test_more_groups_than_there_are_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with served(lambda: FakeCluster(FakeGroup())) as found:
        assert run_cli(["bench", "-n", found.address, "-w", "W1", "--groups", "2"]) == 1
        assert "--groups 1" in capsys.readouterr().err
        assert found.cluster.groups[0].topics == {}
