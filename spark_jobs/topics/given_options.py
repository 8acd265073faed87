"""Options of `format("ledgermq")` as Spark passes them: names in any case, values as text. Pure.

Owns: what reading and writing have in common: unknown names, numbers, flags, and the error for each.
Must not: know which options there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ledgermq.client.errors import did_you_mean, similar_names

from ..errors import SparkJobError

#: Option `nameservers` unless it is given.
NAMESERVERS: Final = "127.0.0.1:9876"
#: Names for the same in Spark's Kafka connector, and likely slips, in lower case -> ours.
_SAME: Final = {
    "kafka.bootstrap.servers": "nameservers",
    "bootstrap.servers": "nameservers",
    "nameserver": "nameservers",
}


class GivenOptions:
    """Options by name, without regard to case."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str], verb: str) -> None:
        """`known`: option -> what it takes, for errors. `verb`: what they are for, "reading"."""
        self._options = {name.lower(): (name, str(text).strip()) for name, text in options.items()}
        self._known = known
        self._verb = verb

    def refuse_unknown(self, same: Mapping[str, str], of_spark: Iterable[str] = ()) -> None:
        """Raises: SparkJobError for the first option that does not exist.

        `same`: another name, in lower case -> the option that is meant. `of_spark`: Spark passes them on.
        """
        known = {name.lower(): name for name in self._known}
        for lower, (name, _) in self._options.items():
            if lower in known or lower in of_spark:
                continue
            meant = same.get(lower) or _SAME.get(lower)
            similar = [meant] if meant else [known[each] for each in similar_names(lower, known)[:1]]
            question = did_you_mean(similar) or f"Known are: {', '.join(self._known)}"
            raise SparkJobError(f'there is no option "{name}" for {self._verb} ledgermq. {question}')

    def text(self, name: str, otherwise: str = "") -> str:
        return self._options.get(name.lower(), ("", ""))[1] or otherwise

    def wrong(self, name: str) -> SparkJobError:
        return SparkJobError(f'option {name}="{self.text(name)}" is not valid; it takes {self._known[name]}')

    def count(self, name: str, otherwise: int = 0) -> int:
        """Return a whole number above 0. Raises: SparkJobError."""
        text = self.text(name)
        if not text:
            return otherwise
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 63):
            raise self.wrong(name)
        return int(text)

    def flag(self, name: str, otherwise: bool) -> bool:
        """Raises: SparkJobError."""
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise self.wrong(name)
        return text == "true" if text else otherwise


def no_column(name: str, known: Iterable[str]) -> str:
    """Return the sentence about a column that messages do not have."""
    known = list(known)
    question = did_you_mean(similar_names(name, known)[:1]) or f"It has: {', '.join(known)}."
    return f'a topic has no column "{name}". {question}'
