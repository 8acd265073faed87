"""Text of a scenario: blocks of commands, each followed by `----` and the facts that it must print.

    # A pre-vote changes nothing.          one to four lines of comment: what it shows, why it matters
    nodes n1 n2 n3

    campaign n1                            commands, one per line
    ----
    n1 is pre_candidate in term 0          expected facts, up to the next blank line

Owns: the format. Must not: know what a command does. A line that begins with `#` is a comment, also between
commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Final

SEPARATOR: Final = "----"
MAX_HEADER_LINES: Final = 4


class ScenarioError(Exception):
    """A scenario that cannot be run: file, line, and the problem there."""

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}:{line}: {problem}")


@dataclass(frozen=True, slots=True)
class Command:
    """One command line, without its comment."""

    line: int  # in the file, from 1
    words: tuple[str, ...]


@dataclass(slots=True)
class Block:
    """Commands and their expected output."""

    lead: list[str] = field(default_factory=list)  # the lines up to `----`, as in the file
    commands: list[Command] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    line: int = 0  # of `----`


class Scenario:
    """A parsed file. Raises: ScenarioError."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.blocks: list[Block] = []
        self._tail: list[str] = []  # comments after the last block
        self._text = text
        lines = text.splitlines()
        self._check_header(lines)
        block = Block()
        is_output = False
        for number, line in enumerate(lines, start=1):
            if is_output:
                if line.startswith("#"):
                    raise ScenarioError(
                        name, number, "a comment among the facts; a blank line ends the facts"
                    )
                if line.strip():
                    block.expected.append(line)
                else:
                    self.blocks.append(block)
                    block, is_output = Block([line]), False
            elif line.rstrip() == SEPARATOR:
                if not block.commands:
                    raise ScenarioError(name, number, f"{SEPARATOR} without a command above it")
                block.line, is_output = number, True
            else:
                block.lead.append(line)
                words = tuple(line.split())
                if words and not line.startswith("#"):
                    block.commands.append(Command(number, words))
        if is_output:
            self.blocks.append(block)
        elif block.commands:
            raise ScenarioError(name, block.commands[-1].line, f"no {SEPARATOR} below the last command")
        else:
            self._tail = block.lead
        if not self.blocks:
            raise ScenarioError(name, max(1, len(lines)), "no command")

    def _check_header(self, lines: list[str]) -> None:
        count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        if not 1 <= count <= MAX_HEADER_LINES:
            wanted = f"1 to {MAX_HEADER_LINES} lines of comment that say what it shows and why it matters"
            raise ScenarioError(self.name, 1, f"{count} lines of comment at the top, wanted {wanted}")

    def with_output(self, outputs: list[list[str]]) -> str:
        """Return the file's text with these facts in place of the expected ones."""
        lines: list[str] = []
        for block, output in zip(self.blocks, outputs, strict=True):
            lines += [*block.lead, SEPARATOR, *output]
        return "\n".join([*lines, *self._tail]).rstrip("\n") + "\n"

    def differences(self, outputs: list[list[str]]) -> str:
        """Return actual and expected output, block by block; "" if they are equal."""
        found: list[str] = []
        for block, output in zip(self.blocks, outputs, strict=True):
            if block.expected != output:
                commands = " / ".join(" ".join(command.words) for command in block.commands)
                found.append(f"{self.name}:{block.line}: {commands}")
                found += list(unified_diff(block.expected, output, "expected", "printed", n=2, lineterm=""))
        return "\n".join(found)
