"""The answer to a lone message is built from bytes, equal to those that the generated code writes."""

from __future__ import annotations

import pytest

from ledgermq.broker.official.send import answer_of_one
from ledgermq.proto import rocketmq_v2_pb2 as v2


@pytest.mark.parametrize("message_id", ["01" * 17, "x", "é" * 200])
@pytest.mark.parametrize("offset", [-1, 0, 1, 127, 128, (1 << 40) + 5])
def test_the_answer_to_one_message_is_what_the_generated_code_would_write(
    message_id: str, offset: int
) -> None:
    status = v2.Status(code=v2.OK, message="OK")
    entry = v2.SendResultEntry(
        status=status, message_id=message_id, transaction_id=message_id, offset=max(offset, 0)
    )
    expected = v2.SendMessageResponse(status=status, entries=[entry])
    assert answer_of_one(message_id, offset) == expected.SerializeToString()
