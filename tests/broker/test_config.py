"""The configuration: three sources, one validation, sentences that name the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.__main__ import parse_flags
from ledgermq.broker.config import BrokerConfig, ConfigError, load, parse_size, split_address
from ledgermq.broker.node import own_info
from ledgermq.broker.ports.port_policy import port_policy


def test_flags_are_stronger_than_the_environment_and_that_is_stronger_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('cluster = "a"\ngroup = "a"\nnode_id = "a"\n')
    config = load(file, {"node_id": "c"}, {"LEDGERMQ_NODE_ID": "b", "LEDGERMQ_GROUP": "b"})
    assert (config.cluster, config.group, config.node_id) == ("a", "b", "c")


def test_lists_and_tables_can_be_written_in_one_line() -> None:
    config = load(
        None,
        {
            "peers": "n1=127.0.0.1:1, n2=127.0.0.1:2",
            "nameservers": "127.0.0.1:9876,127.0.0.1:9886",
            "election_timeout_ms": "300-500",
            "segment_size": "64MiB",
            "listener": "name=in,messaging_bind=0.0.0.0:1,messaging_advertise=n1:1,log_bind=127.0.0.1:2",
        },
        {},
    )
    assert config.voters == {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}
    assert config.nameservers == ("127.0.0.1:9876", "127.0.0.1:9886")
    assert config.election_timeout_ms == (300, 500)
    assert config.segment_size == 64 << 20
    assert config.listener[0].messaging_advertise == "n1:1"
    assert config.listener[0].log_advertise == "127.0.0.1:2"


def test_a_node_says_in_which_zone_it_stands() -> None:
    assert own_info(load(None, {"zone": "rack 7"}, {"LEDGERMQ_ZONE": "east"})).zone == "rack 7"
    assert own_info(load(None, {}, {"LEDGERMQ_ZONE": "east"})).zone == "east"
    assert own_info(load(None, {}, {})).zone == ""


def test_a_node_without_peers_is_a_group_of_its_own() -> None:
    assert BrokerConfig().voters == {"n1": "127.0.0.1:20911"}


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"flush": "never"}, {}, ["--flush", "'sync'", "'never'"]),
        (
            {"disk_delete_oldest_percent": "75"},
            {},
            ["--disk-delete-oldest-percent", "75 is not above disk_delete_expired_percent, which is 75"],
        ),
        ({"disk_refuse_messages_percent": "94"}, {}, ["--disk-refuse-messages-percent", "93", "'94'"]),
        ({"disk_delete_expired_percent": "5"}, {}, ["--disk-delete-expired-percent", "10", "'5'"]),
        ({"disk_delete_oldest_percent": "nan"}, {}, ["--disk-delete-oldest-percent", "finite"]),
        (
            {"access_message_in_memory_max_ratio": "101"},
            {},
            ["--access-message-in-memory-max-ratio", "100", "'101'"],
        ),
        ({"segment_size": "12 pounds"}, {}, ["--segment-size", "not a size"]),
        ({"segment_size": "5GiB"}, {}, ["--segment-size", "at most 4GiB"]),
        ({"peers": "n2=127.0.0.1:1"}, {}, ["--peers", "n1 itself is missing"]),
        ({"listener": "messaging_bind=0.0.0.0:1"}, {}, ["messaging_advertise", "0.0.0.0:1"]),
        ({"listener": "name=a,mesaging_bind=a:1"}, {}, ["mesaging_bind", "messaging_bind"]),
        ({"raft_bind": "nowhere"}, {}, ["--raft-bind", "not host:port"]),
        ({"raft_bind": "a" * 64 + ":1"}, {}, ["--raft-bind", "63 characters"]),
        ({"raft_bind": "a..b:1"}, {}, ["--raft-bind", "63 characters"]),
        ({"raft_bind": "\x1b:1"}, {}, ["--raft-bind", "cannot be printed"]),
        ({"data_dir": ""}, {}, ["--data-dir", "not a folder"]),
        ({"data_dir": "a\0b"}, {}, ["--data-dir", "not a folder"]),
        ({"nameservers": "a:9876,b:²"}, {}, ["--nameservers", '"b:²" is not host:port']),
        ({"replication": "half"}, {}, ["--replication", "'async_master'"]),
        ({"master": "n1"}, {}, ["--master", "elect their leader"]),
        ({"replication": "async_master", "master": "n7"}, {}, ["--master", "no node of this broker group"]),
        ({"replication": "sync_master", "master": "n1"}, {}, ["min_insync_slaves", "ever be confirmed"]),
        ({"clean_at": "25:00"}, {}, ["--clean-at", "04:00"]),
        ({"zone": "east "}, {}, ["--zone", "'east '", "at the ends"]),
        ({}, {"LEDGERMQ_ZONE": "x" * 65}, ["LEDGERMQ_ZONE", "up to 64"]),
        ({}, {"LEDGERMQ_DATA_DIRR": "x"}, ["LEDGERMQ_DATA_DIRR", "LEDGERMQ_DATA_DIR"]),
        ({}, {"LEDGERMQ_FLUSH": "x"}, ["environment variable LEDGERMQ_FLUSH"]),
    ],
)
def test_an_error_names_the_source_and_the_reason(
    flags: dict[str, Any], environment: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, flags, environment)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_variables_of_the_command_line_are_not_taken_for_settings() -> None:
    """`ledgermq up` tells people to export one of them, and starts brokers in the same shell."""
    load(None, {}, {"LEDGERMQ_NAMESERVER": "127.0.0.1:9877", "LEDGERMQ_DEBUG": "1"})


def test_an_unknown_key_in_the_file_is_an_error_that_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('nodeid = "n1"\n')
    with pytest.raises(ConfigError, match=r'broker.toml: key "nodeid": .*Did you mean "node_id"'):
        load(file, {}, {})


def test_a_file_that_is_missing_or_no_toml_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", {}, {})
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / "bad.toml", {}, {})


def test_a_file_that_is_nested_too_deep_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("a=" + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deep"):
        load(file, {}, {})


def test_sizes_and_addresses_are_parsed() -> None:
    assert [parse_size(text) for text in ("10", "1KiB", "2 gib", 7)] == [10, 1024, 2 << 30, 7]
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(ValueError, match="host:port"):
        split_address("localhost")


def test_large_flushes_have_at_least_a_page() -> None:
    with pytest.raises(ConfigError, match="flag --direct-write-bytes: must be 0, or at least a page"):
        load(None, {"direct_write_bytes": "4095"}, {})
    assert load(None, {"direct_write_bytes": "0"}, {}).direct_write_bytes == 0
    assert load(None, {"direct_write_bytes": "4KiB"}, {}).direct_write_bytes == 4096


def test_segments_must_hold_the_largest_message() -> None:
    with pytest.raises(ConfigError, match="at least 17MiB, or max_message_bytes to at most 978816"):
        load(None, {"segment_size": "4MiB"}, {})
    assert load(None, {"segment_size": "17MiB"}, {}).max_message_bytes == 4 << 20
    assert load(None, {"segment_size": "4MiB", "max_message_bytes": "978816"}, {}).segment_size == 4 << 20
    with pytest.raises(ConfigError, match="flag --max-message-bytes: must be between"):
        load(None, {"max_message_bytes": "5MiB"}, {})


def test_tls_needs_a_certificate_its_key_and_the_front() -> None:
    with pytest.raises(ConfigError, match='"tls_certificate": client_tls is both, so a PEM file is needed'):
        load(None, {"client_tls": "both"}, {})
    files = {"tls_certificate": "c.pem", "tls_private_key": "k.pem"}
    with pytest.raises(ConfigError, match="tls-front: client_tls is tls, which needs the front"):
        load(None, {"client_tls": "tls", "tls_front": "false", **files}, {})
    assert load(None, {"client_tls": "tls", **files}, {}).tls_private_key == Path("k.pem")


def test_tls_between_nodes_needs_three_files() -> None:
    files = {"peer_tls_certificate": "c.pem", "peer_tls_private_key": "k.pem", "peer_tls_ca": "ca.pem"}
    for missing in files:
        others = {key: value for key, value in files.items() if key != missing}
        with pytest.raises(ConfigError, match=f'"{missing}": peer_tls is tls, so a PEM file is needed'):
            load(None, {"peer_tls": "tls", **others}, {})
    assert load(None, {"peer_tls": "both", **files}, {}).peer_tls_ca == Path("ca.pem")
    with pytest.raises(ConfigError, match="it is one of 'plaintext', 'both', 'tls'"):
        load(None, {"peer_tls": "off"}, {})


def test_connections_are_counted_from_one() -> None:
    with pytest.raises(ConfigError, match="max-connections"):
        load(None, {"max_connections": "0"}, {})
    assert load(None, {"max_connections_per_address": "0", "connection_idle_seconds": "0"}, {})


@pytest.mark.parametrize(
    "key",
    ["retention_hours", "delete_segments_per_second", "scrub_interval_hours", "connection_idle_seconds"],
)
def test_a_length_of_time_or_a_rate_is_a_number_that_can_be_computed_with(key: str) -> None:
    for wrong in ("inf", "-inf", "nan", "1e12", "-1"):
        with pytest.raises(ConfigError, match=f"LEDGERMQ_{key.upper()}: .*Correct it and start again"):
            load(None, {}, {f"LEDGERMQ_{key.upper()}": wrong})


def test_the_longest_idle_time_is_one_that_a_port_can_count() -> None:
    longest = load(None, {"connection_idle_seconds": "2147483"}, {})
    assert dict(port_policy(longest).server_options())["grpc.max_connection_idle_ms"] < 1 << 31
    with pytest.raises(ConfigError, match="at most 2147483"):
        load(None, {"connection_idle_seconds": "2147484"}, {})


def test_every_setting_has_a_flag_and_says_what_it_is() -> None:
    """A setting without a word of help would end every node at its start."""
    flags = ["--max-topics", "7", "--data", "d"]
    assert parse_flags(flags) == (None, {"max_topics": "7", "data_dir": "d"})


@pytest.mark.parametrize("value", ["@@", "-1", "nan", [], {"a": "b"}, 10**30])
@pytest.mark.parametrize("key", BrokerConfig.model_fields)
def test_a_value_that_cannot_be_is_refused_in_our_words_with_where_it_was_set(
    key: str, value: object
) -> None:
    try:
        load(None, {key: value})
    except ConfigError as error:
        said = str(error)
    else:
        return  # it is a text, or a number that may be so large
    assert said.startswith((f"flag --{key.replace('_', '-')}", "setting ", "environment variable ")), said
    assert not any(word in said for word in ("Input should", "Value error", "pydantic", "validation")), said


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "flush",
            "never",
            "flag --flush: it is one of 'sync', 'async_timed', 'async_notify' (given: 'never')",
        ),
        ("heartbeat_ms", "3", "flag --heartbeat-ms: it must be at least 10 (given: '3')"),
        ("heartbeat_ms", "soon", "flag --heartbeat-ms: it is a whole number (given: 'soon')"),
        ("tls_front", "perhaps", "flag --tls-front: it is true or false (given: 'perhaps')"),
    ],
)
def test_what_is_allowed_is_said(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, {key: value})
    assert str(error.value).startswith(words)
