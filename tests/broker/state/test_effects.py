"""Effects of an entry that parts of the node follow."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ledgermq.broker.state.effects import Effects

#: Facts of entries that only store or deliver messages.
PLAIN = {"index", "term", "timestamp", "sections", "results", "released"}


@pytest.mark.parametrize("name", [each.name for each in fields(Effects) if each.name not in PLAIN])
def test_an_entry_with_any_other_effect_is_not_plain(name: str) -> None:
    effects = Effects(1, 1, 0, released={(1, 1)})
    assert effects.is_plain
    setattr(effects, name, [object()])
    assert not effects.is_plain
