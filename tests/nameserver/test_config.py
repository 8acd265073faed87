"""Settings of the nameserver."""

from __future__ import annotations

import pytest

from ledgermq.nameserver.config import resolve
from ledgermq.nameserver.errors import NameserverConfigError


def test_the_default_is_one_listener_on_loopback() -> None:
    assert resolve({}, {}, {}).listeners == {"default": "127.0.0.1:9876"}


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    file, environment = {"bind": "a:1", "expiry_ms": 3000}, {"LEDGERMQ_NAMESERVER_BIND": "b:2"}
    assert resolve(file, {}, {}).listeners == {"default": "a:1"}
    assert resolve(file, environment, {}).listeners == {"default": "b:2"}
    config = resolve(file, environment, {"bind": "c:3", "listener": []})
    assert config.listeners == {"default": "c:3"}
    assert config.expiry_ms == 3000


def test_listeners_have_names() -> None:
    flags = {"listener": ["internal=0.0.0.0:9876", "external=127.0.0.1:19876"]}
    assert resolve({}, {}, flags).listeners == {"internal": "0.0.0.0:9876", "external": "127.0.0.1:19876"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bnd": "a:1"}, ["bnd", 'did you mean "bind"', "in x.toml"]),
        ({"bind": "nowhere"}, ["host:port"]),
        ({"bind": "a:99999"}, ["host:port"]),
        ({"expiry_ms": 10}, ["2000"]),
        ({"expiry_ms": "soon"}, ["whole number"]),
        ({"log_level": "loud"}, ["info"]),
        ({"server_transport": "tcp"}, ["grpcio", "event_loop"]),
        ({"listener": ["internal"]}, ["name=host:port"]),
        ({"listener": 5}, ["table"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_the_way_out(
    settings: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(NameserverConfigError) as caught:
        resolve(settings, {}, {}, file_name="x.toml")
    for word in [*words, "ledgermq nameserver --help"]:
        assert word in str(caught.value)
