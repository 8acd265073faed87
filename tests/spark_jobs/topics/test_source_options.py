"""Every wrong option gets one error that names what is meant."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.topics.source_options import (
    parse_source_options,
    read_columns,
)


def test_defaults_are_those_of_the_kafka_connector() -> None:
    batch = parse_source_options({"subscribe": "a, b"}, streaming=False)
    stream = parse_source_options({"subscribePattern": "a.*"}, streaming=True)
    assert (batch.topics, batch.start.word, batch.end.word) == (("a", "b"), "earliest", "latest")
    assert (stream.pattern, stream.start.word, stream.fail_on_data_loss) == ("a.*", "latest", True)


def test_names_ignore_case_as_spark_does() -> None:
    options = {"SUBSCRIBE": "a", "failondataloss": "FALSE", "startingoffsets": '{"a": {"g0": {"0": -2}}}'}
    found = parse_source_options(options, streaming=True)
    assert (found.fail_on_data_loss, found.start.offsets) == (False, {"a": {"g0": {0: -2}}})


def test_times() -> None:
    for text in ("1767225600000", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-01"):
        found = parse_source_options({"subscribe": "a", "startingTimestamp": text}, streaming=False)
        assert found.start.timestamp == 1767225600000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "subscribe"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribePattern"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"subscribe": "a", "startingOffset": "latest"}, 'Did you mean "startingOffsets"'),
        ({"subscribe": "a", "kafka.bootstrap.servers": "x"}, 'Did you mean "nameservers"'),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1"}, 'Did you mean "maxMessagesPerTrigger"'),
        ({"subscribe": "a", "zzz": "1"}, "Known are: nameservers"),
        ({"subscribe": "a", "minPartitions": "-1"}, "a whole number above 0"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "startingOffsets": "newest"}, "earliest, latest, or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1}}'}, "earliest, latest, or JSON"),
        ({"subscribe": "a", "startingOffsets": "{" * 5000}, "earliest, latest, or JSON"),
        ({"subscribe": "a", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "ms since 1970"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "read nothing"),
        ({"subscribe": "a", "maxMessagesPerTrigger": "5"}, "for streams"),
    ],
)
def test_wrong_options_of_a_batch(options: dict[str, str], words: str) -> None:
    with pytest.raises(SparkJobError, match=words.replace("(", r"\(")):
        parse_source_options(options, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(SparkJobError, match="availableNow"):
        parse_source_options({"subscribe": "a", "endingOffsets": "latest"}, streaming=True)


def test_columns() -> None:
    assert read_columns({"columns": "offset, body"}) == "`offset` bigint, `body` binary"
    assert len(read_columns({}).split(", ")) == 12
    with pytest.raises(SparkJobError, match=r'no column "bodies". Did you mean "body"'):
        read_columns({"columns": "bodies"})
