"""Output of the demo: eight steps, with a live bar on a terminal and plain lines in a pipe.

Owns: the format of all output of `ledgermq demo`. Must not: measure, decide, wait.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

STEPS = ("setup", "start", "topic", "send", "consume", "dump", "verify", "doubt")
_BAR_CELLS = 20
_PLAIN_SECONDS = 2.0
_WIDTH = 78


class DemoDisplay:
    """Prints steps in order. Use it as a context manager, so that the terminal is always restored."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.step_number = 0
        self._live: Live | None = None
        self._bar = ""
        self._events: list[str] = []
        self._started = time.monotonic()
        self._step_started = self._started
        self._last_plain = 0.0

    def __enter__(self) -> DemoDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_live()

    @property
    def seconds(self) -> float:
        """Time since the demo began, s."""
        return time.monotonic() - self._started

    @property
    def step_name(self) -> str:
        """The current step as shown: `5/8 consume`."""
        return (
            f"{self.step_number}/{len(STEPS)} {STEPS[self.step_number - 1]}" if self.step_number else "begin"
        )

    def title(self, left: str, right: str) -> None:
        self.console.print(Text(f"{left:<44}{right}", style="bold"))

    def begin(self, doing: str = "") -> None:
        """Start the next step. On a terminal, show what it is doing until `done`."""
        self.step_number += 1
        self._step_started = time.monotonic()
        self._last_plain = 0.0
        self._events = []
        self._bar = doing
        if self.console.is_terminal:
            self._live = Live(self._picture(), console=self.console, refresh_per_second=10, transient=True)
            self._live.start()

    def progress(self, done: int, total: int, rate: float, p99_ms: float | None = None) -> None:
        """Move the bar of the current step."""
        cells = min(_BAR_CELLS, _BAR_CELLS * done // max(total, 1))
        bar = "#" * cells + "-" * (_BAR_CELLS - cells)
        numbers = f"{done:,}/{total:,}  {rate:,.0f} msg/s" + (f"  p99 {p99_ms:.0f} ms" if p99_ms else "")
        self._bar = f"{bar}  {numbers}"
        if self._live is not None:
            self._live.update(self._picture())
        elif time.monotonic() - self._last_plain >= _PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self._print_plain(numbers)

    def event(self, text: str) -> None:
        """Add a line below the step, with the time since the demo began."""
        line = f"{self.seconds:10.1f}   {text}"
        if self._live is not None:
            self._events.append(line)
            self._live.update(self._picture())
        else:
            self.console.print(Text(line))

    def done(self, text: str) -> None:
        """Close the current step with its result."""
        seconds = f"{time.monotonic() - self._step_started:.1f} s"
        self._bar = f"{text:<{_WIDTH - 13 - len(seconds)}} {seconds}"
        if self._live is not None:
            self._live.update(self._picture())
            self._close_live()
        else:
            self._print_plain(self._bar)

    def line(self, text: str, style: str = "") -> None:
        """Print a line outside the steps."""
        self._close_live()
        self.console.print(Text(text, style=style))

    def _close_live(self) -> None:
        """Replace the live picture by permanent lines, complete also on a narrow terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self.console.print(self._picture())

    def _print_plain(self, text: str) -> None:
        self.console.print(Text(f"{self.step_name:<12} {text}"))

    def _picture(self) -> Group:
        head = Text(f"{self.step_name:<12} ", style="bold")
        head.append(self._bar, style="not bold")
        return Group(head, *(Text(line) for line in self._events))
