"""The sample settings and the systemd unit in deploy/ are what this build takes."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from ledgermq.broker.__main__ import parse_flags
from ledgermq.broker.config import load

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_sample_settings_of_three_hosts_load_as_they_are() -> None:
    config = load(DEPLOY / "broker.toml", {}, {})
    assert (config.cluster, config.group, config.node_id) == ("production", "g0", "n1")
    assert list(config.voters) == ["n1", "n2", "n3"]
    assert config.voters["n1"] == config.raft_bind
    assert [listener.log_advertise for listener in config.listener] == ["a.example.net:8082"]


def test_what_is_marked_in_the_sample_is_all_that_differs_between_hosts() -> None:
    """With the marked values of another host the same file is that host's."""
    text = (DEPLOY / "broker.toml").read_text()
    marked = [line for line in text.splitlines() if "PER HOST" in line and not line.startswith("#")]
    assert [line.split()[0] for line in marked] == ["node_id", "data_dir", "raft_bind", "[[listener]]"]


def test_the_unit_starts_what_there_is_and_stops_it_by_sigterm() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "ledgermq-broker.service")
    service = unit["Service"]
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("ledgermq", "broker")
    assert parse_flags(flags) == (Path("/etc/ledgermq/broker.toml"), {})
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert int(service["TimeoutStopSec"]) >= 20
    assert service["RestartPreventExitStatus"].split() == ["2", "3"], "of broker/__main__.py"
    assert int(service["LimitNOFILE"]) >= 4 * 10_000, "max_connections of both client ports"
