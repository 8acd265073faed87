"""The demo's output: plain lines in a pipe, lines that stay on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from ledgermq.client.demo.display import DemoDisplay


def show(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=60, soft_wrap=True, color_system=None)
    with DemoDisplay(console) as display:
        display.begin("looking ...")
        display.done("Python 3.11")
        display.begin()
        display.progress(50, 100, 1234.0, 7.0)
        display.event("kill -9 n2")
        display.done("a line that is longer than the sixty columns of this narrow terminal, kept whole")
    return file.getvalue()


def test_a_pipe_gets_plain_lines_without_control_characters() -> None:
    output = show(terminal=False)
    assert "\x1b" not in output and "\r" not in output
    assert "1/8 setup    Python 3.11" in output
    assert "50/100  1,234 msg/s  p99 7 ms" in output
    assert "kill -9 n2" in output


def test_a_terminal_keeps_the_result_and_the_events_of_each_step() -> None:
    output = show(terminal=True)
    last = output[output.rindex("2/8 start") :]
    assert "kept whole" in last and "kill -9 n2" in last


def test_the_step_is_named_for_the_report_of_a_failure() -> None:
    display = DemoDisplay(Console(file=io.StringIO()))
    assert display.step_name == "begin"
    display.begin()
    assert display.step_name == "1/8 setup"
