"""Calls to all broker groups of a cluster: queries concurrently, changes one after the other.

Owns: the errors for broker groups that do not answer, before or in the middle of a change.
Must not: know which broker groups there are, or what is called.

The errors here concern all broker groups of a cluster; they belong to the tree in errors.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ..errors import LedgerMQError, RefusedError, RouteError
from .topic_route import BrokerGroup


class BrokerGroupsSilentError(RouteError):
    """These broker groups are silent or have no leader, so a change of all was not started."""

    def __init__(self, silent: Mapping[str, LedgerMQError]) -> None:
        names = sorted(silent)
        named = ", ".join(f'"{name}"' for name in names)
        super().__init__(
            f"broker group{'s' * (len(names) > 1)} {named} cannot be changed now: {silent[names[0]].what}",
            "The others alone would be an incomplete change. Nothing was changed",
            "Repeat it when it answers again (ledgermq cluster status). "
            "It is lost for good: stop what is left of it, then "
            f"ledgermq cluster forget-group {names[0]}",
        )
        self.silent = dict(silent)


class PartlyChangedError(LedgerMQError):
    """A change of several broker groups stopped half way. Each broker group is in one of the three lists.

    `perhaps`: an attempt there had no answer. The change may be repeated.
    """

    retryable = True

    def __init__(
        self,
        error: LedgerMQError,
        *,
        at: str,
        changed: Sequence[str],
        perhaps: Sequence[str],
        unchanged: Sequence[str],
        again: str,
    ) -> None:
        lists = {"Changed": changed, "Perhaps changed": perhaps, "Not changed": unchanged}
        super().__init__(
            f'the change stopped half way, at broker group "{at}": {error.what}',
            ". ".join(f"{what}: {', '.join(names)}" for what, names in lists.items() if names),
            again,
        )
        self.changed, self.perhaps, self.unchanged = tuple(changed), tuple(perhaps), tuple(unchanged)


class PartlyRefusedError(PartlyChangedError):
    """A broker group refuses the change for good, for example because it has other settings there."""

    retryable = False


T = TypeVar("T")
#: By broker group: why its part of an answer is missing.
Silent = dict[str, LedgerMQError]


def why_missing(broker_group: str, error: LedgerMQError) -> str:
    """Return the line about a silent broker group. A common prefix of the errors is not repeated."""
    why = str(error).removeprefix(f'broker group "{broker_group}" does not answer: ')
    return f"broker group {broker_group} does not answer: {why}"


async def ask_all(
    broker_groups: Sequence[BrokerGroup], ask: Callable[[BrokerGroup], Awaitable[T]]
) -> tuple[list[tuple[BrokerGroup, T]], Silent]:
    """Query broker groups concurrently. Return the answers, and the errors of silent ones.

    Raises: any other error than silence.
    """
    answers: list[tuple[BrokerGroup, T]] = []
    silent: Silent = {}
    for broker_group, answer in zip(
        broker_groups, await asyncio.gather(*map(ask, broker_groups), return_exceptions=True), strict=True
    ):
        if isinstance(answer, LedgerMQError) and answer.retryable:
            silent[broker_group.name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers.append((broker_group, answer))
    return answers, silent


async def check_that_all_answer(
    broker_groups: Sequence[BrokerGroup], ask: Callable[[BrokerGroup], Awaitable[object]]
) -> None:
    """Query before a change of several broker groups, so as not to start what cannot be finished.

    A definite refusal counts as an answer. Raises: BrokerGroupsSilentError.
    """

    async def answers(broker_group: BrokerGroup) -> None:
        try:
            await ask(broker_group)
        except RefusedError as error:
            if error.retryable:
                raise

    if len(broker_groups) > 1:
        _, silent = await ask_all(broker_groups, answers)
        if silent:
            raise BrokerGroupsSilentError(silent)


async def change_each(
    broker_groups: Sequence[BrokerGroup], change: Callable[[BrokerGroup], Awaitable[T | None]], again: str
) -> list[tuple[BrokerGroup, T]]:
    """Change one broker group after the other; return the answers (None: nothing to change there).

    `again`: what a repetition does. Raises: the error of the first broker group, if none was changed;
    PartlyChangedError.
    """
    answers: list[tuple[BrokerGroup, T]] = []
    for number, broker_group in enumerate(broker_groups):
        try:
            answer = await change(broker_group)
        except LedgerMQError as error:
            others, is_open = [each.name for each in broker_groups[number + 1 :]], error.perhaps_done
            if not answers and not (is_open and others):
                raise
            failed = PartlyChangedError if error.retryable else PartlyRefusedError
            raise failed(
                error,
                at=broker_group.name,
                changed=[each.name for each, _ in answers],
                perhaps=[broker_group.name] * is_open,
                unchanged=[broker_group.name] * (not is_open) + others,
                again=again,
            ) from error
        if answer is not None:
            answers.append((broker_group, answer))
    return answers
