"""In-band results of MessagingService: a failure is a `Status` in an answer whose gRPC status is OK."""

from __future__ import annotations

from ledgermq.proto import rocketmq_v2_pb2 as v2


class StatusError(Exception):
    """Failure of a call, answered with this code and text."""

    def __init__(self, code: v2.Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def status(self) -> v2.Status:
        """Return the status for the client."""
        return v2.Status(code=self.code, message=self.message)


def ok() -> v2.Status:
    """Return the status of success (20000, not 0)."""
    return v2.Status(code=v2.OK, message="OK")


def overall(statuses: list[v2.Status]) -> v2.Status:
    """Return the status of a call from those of its entries: theirs if equal, else MULTIPLE_RESULTS."""
    codes = {status.code for status in statuses}
    if len(codes) == 1:
        return v2.Status(code=statuses[0].code, message=statuses[0].message)
    return v2.Status(code=v2.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")


def topic_not_found(topic: str) -> StatusError:
    """Return the error of an unknown topic. The beginning of its text is what clients' tests expect."""
    text = f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}"
    return StatusError(v2.TOPIC_NOT_FOUND, f"{text}. Create it: ledgermq topic create {topic}")
