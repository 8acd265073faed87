"""Lake verification: what is said about a queue, from answers about its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.client.errors import TopicNotFoundError
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake import lake_verification
from ledgermq.spark_jobs.lake.broker_ranges import FileComparison
from ledgermq.spark_jobs.lake.lake_folder import LakeFolder
from ledgermq.spark_jobs.lake.lake_verification import LakeVerdict, verify
from ledgermq.spark_jobs.topics.read_plan import QueueState

from .lake_maker import add_batch, messages, new_lake, state_of


class FakeLook:
    """Knows these queues, or no topic."""

    def __init__(self, states: Sequence[QueueState] | None) -> None:
        self._found = states

    def __call__(self, _options: object) -> FakeLook:
        return self

    def __enter__(self) -> FakeLook:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def states(self, *, complete: bool) -> Sequence[QueueState]:
        assert complete
        if self._found is None:
            raise TopicNotFoundError("orders")
        return self._found


def same(tasks: Sequence[FileComparison]) -> list[dict[str, Any]]:
    """Answer that everything that is asked for is the same."""
    return [
        {
            "problem": "",
            "ranges": [
                {"compared": each.end - each.start if each else 0, "problem": ""} for each in task.at_brokers
            ],
        }
        for task in tasks
    ]


def verified(
    lake: LakeFolder, states: Sequence[QueueState] | None, monkeypatch: pytest.MonkeyPatch, run: Any = same
) -> LakeVerdict:
    monkeypatch.setattr(lake_verification, "TopicLook", FakeLook(states))
    return verify(lake, ["orders"], "ns:1", run)


@pytest.fixture
def lake(tmp_path: Path) -> LakeFolder:
    """Queue 0 with messages 0 to 9 and 12 to 19, queue 1 with 0 to 4."""
    made = new_lake(tmp_path)
    add_batch(made, messages(0, 10), messages(0, 5, queue=1))
    add_batch(made, messages(12, 20), fail=False)
    made.close()
    return made


def test_what_the_brokers_have_is_compared_and_the_rest_is_counted(
    lake: LakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verified(lake, [state_of(0, 7, 30), state_of(1, 5, 5)], monkeypatch)
    zero, one = verdict.queues
    assert (zero.first, zero.end, zero.archived, zero.compared, zero.gone, zero.gaps) == (0, 20, 18, 11, 7, 2)
    assert (one.archived, one.compared, one.gone, one.gaps) == (5, 0, 5, 0)
    assert verdict.differences == []
    assert verdict.fields()["same"]


def test_a_topic_that_is_deleted_leaves_nothing_to_compare(
    lake: LakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verified(lake, None, monkeypatch)
    assert [(each.compared, each.gone) for each in verdict.queues] == [(0, 18), (0, 5)]
    assert verdict.differences == []


def test_damage_and_differences_are_told(lake: LakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(tasks: Sequence[FileComparison]) -> list[dict[str, Any]]:
        answers = same(tasks)
        answers[0]["problem"] = "it is gone"
        answers[1]["ranges"][0]["problem"] = "the brokers have other messages"
        return answers

    verdict = verified(lake, [state_of(0, 0, 30), state_of(1, 0, 5)], monkeypatch, run)
    assert len(verdict.differences) == 2
    assert "it is gone" in verdict.differences[0]
    assert "the brokers have other messages" in verdict.queues[0].differences[0]


def test_offsets_that_no_file_has_are_differences(lake: LakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state_of(0, 0, 30), state_of(1, 0, 5)]
    lake.state.gaps.clear()
    assert verified(lake, states, monkeypatch).differences == [
        "offsets 10 to 12 of queue g0/0 are in no file of the lake"
    ]
    path = max(lake.state.files)
    file = lake.state.files.pop(path)
    assert verified(lake, states, monkeypatch).differences == [
        "offsets 10 to 20 of queue g0/0 are in no file of the lake"
    ]
    lake.state.files[path] = replace(file, ranges=(replace(file.ranges[0], first=8),))
    assert (
        "offsets 8 to 10 of queue g0/0 are twice in the lake"
        in verified(lake, states, monkeypatch).differences
    )


def test_a_topic_that_was_created_again_is_refused(lake: LakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkJobError, match="was deleted and created again"):
        verified(lake, [state_of(0, 0, 30, topic_id=4)], monkeypatch)
