"""Pages of the documentation that are made from the code: command line, configuration, public Python API.

    python deploy/docs_reference.py FOLDER     writes them, as deploy/docs_site.py adds them to the site

Needs the packages with the extra `server`. Must not: need MkDocs, so that tests can look at the pages
without it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import typer
import typer.main

import ledgermq.client
import ledgermq.client.errors
import ledgermq.client.sync
from ledgermq.broker import __main__ as broker_program
from ledgermq.broker.config import ENV_PREFIX, BrokerConfig, ListenerConfig
from ledgermq.client.admin.broker_groups import AddedBrokerGroup, Left
from ledgermq.client.cli.command_line import build_app
from ledgermq.client.consume.statistics import LeaseStatistics, PulledQueue, PullStatistics
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.push.push_statistics import ConsumerStatistics, QueueStatistics
from ledgermq.nameserver import __main__ as nameserver_program
from ledgermq.nameserver.config import ENVIRONMENT_PREFIX

WIDTH: Final = 100
PYTHON: Final = "reference/python/"
#: Pages of the asyncio client, and the names of `ledgermq.client` on each. Errors have a page of their own.
TOPICS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "producer": (
        "Producer",
        "Sends messages.",
        ("Producer", "SendReceipt", "ProducerStatistics", "BrokerGroupStatistics"),
    ),
    "simple-consumer": (
        "SimpleConsumer",
        "Takes messages under leases; any number of consumers share a queue.",
        ("SimpleConsumer", "LeasedMessage"),
    ),
    "push-consumer": (
        "PushConsumer",
        "Calls a listener; each queue has one consumer at a time.",
        ("PushConsumer", "PushOptions", "QueueLimits", "RetryLater"),
    ),
    "pull-consumer": (
        "PullConsumer",
        "Reads queues as logs, from any offset.",
        ("PullConsumer", "MessageView", "MessageQueue"),
    ),
    "admin": (
        "Administration",
        "Topics, consumer groups, broker groups, stored messages.",
        ("Admin", "BrokerGroupAdmin", "FoundMessages", "Hold"),
    ),
    "messages": ("Message", "What a producer sends.", ("Message",)),
}
#: Records that methods return and nobody makes: they stand on these pages, too.
RETURNED: Final[Mapping[str, tuple[type, ...]]] = {
    "simple-consumer": (LeaseStatistics,),
    "push-consumer": (ConsumerStatistics, QueueStatistics),
    "pull-consumer": (PullStatistics, PulledQueue),
    "admin": (AddedBrokerGroup, Left),
}


def pages() -> dict[str, str]:
    """Return the Markdown of all generated pages, by path below docs/."""
    return {"reference/cli.md": command_line(), "reference/configuration.md": configuration(), **python()}


# --- command line ----------------------------------------------------------------------------------------
def command_line() -> str:
    """Return the page with the help of every command."""
    root: Any = typer.main.get_command(build_app())
    lines = [
        "# Command line",
        "Made from the code: what `--help` prints. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C;"
        " `ledgermq cluster status`: 0 healthy, 1 degraded, 2 no quorum, 3 nothing answers.",
    ]
    for words, text in _commands(root, ("ledgermq",), None):
        lines += [f"{'#' * min(len(words) + 1, 4)} {' '.join(words)}", f"```text\n{text.rstrip()}\n```"]
    return "\n\n".join(lines) + "\n"


def _commands(command: Any, words: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each command below this one, itself first, with the text of its help."""
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, **command.context_settings}
    context = typer.Context(command, info_name=words[-1], parent=parent, **settings)
    programs = {"broker": broker_program.parse_flags, "nameserver": nameserver_program.load_config}
    program = programs.get(words[-1]) if len(words) == 2 else None
    yield words, _help_of(program) if program else command.get_help(context)
    for name in getattr(command, "commands", ()):
        yield from _commands(command.get_command(context, name), (*words, name), context)


def _help_of(parse: Any) -> str:
    """Return what a program of its own, whose flags argparse knows, prints for `--help`."""
    printed = io.StringIO()
    columns = mock.patch.dict("os.environ", COLUMNS=str(WIDTH + 2))  # argparse leaves a margin
    with columns, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        parse(["--help"])
    return printed.getvalue()


# --- configuration ---------------------------------------------------------------------------------------
def configuration() -> str:
    """Return the page with every setting of brokers and nameservers."""
    broker = [
        _row(f"`{key}`", _default(field), broker_program._HELP[key])
        for key, field in BrokerConfig.model_fields.items()
    ]
    listener = [_row(f"`{key}`", _default(field), "") for key, field in ListenerConfig.model_fields.items()]
    parser = _parser_of(nameserver_program.load_config)
    nameserver = [
        _row(f"`{action.dest}`", "", action.help or "")
        for action in parser._actions
        if action.dest not in ("help", "config")
    ]
    head = "| key | default | meaning |\n|---|---|---|"
    return "\n".join(
        (
            "# Configuration",
            "",
            "Made from the code. A setting comes from a TOML file (`--config`), an environment variable, or",
            "a flag; the later one is stronger. Unknown keys and values that cannot be are refused",
            "before anything starts. Sizes are bytes or a text like `64MiB`. A file for three hosts:",
            "[broker.toml](../../deploy/broker.toml).",
            "",
            "## Broker",
            "",
            f"`key` is `{ENV_PREFIX}KEY` in the environment, and the flag `--key`, with `-` for `_`.",
            "",
            head,
            *broker,
            "",
            "Each `[[listener]]` has these keys; clients are told `*_advertise`, or else `*_bind`:",
            "",
            "| key | default | |\n|---|---|---|",
            *listener,
            "",
            "## Nameserver",
            "",
            f"`key` is `{ENVIRONMENT_PREFIX}KEY` in the environment, and the flag `--key`, with `-` for `_`.",
            "",
            head.replace("| default ", "").replace("|---|---|---|", "|---|---|"),
            *(row.replace("|  |", "|", 1) for row in nameserver),
            "",
        )
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: Any) -> str:
    """Return a default as it would stand in the file."""
    value = field.default
    if (
        value is None
        or value in ("", (), {})
        or (isinstance(value, tuple) and isinstance(value[0], ListenerConfig))
    ):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _parser_of(parse: Any) -> argparse.ArgumentParser:
    """Return the parser that a program makes."""
    found: list[argparse.ArgumentParser] = []

    def remember(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise SystemExit

    with mock.patch.object(argparse.ArgumentParser, "parse_args", remember), contextlib.suppress(SystemExit):
        parse([])
    return found[0]


# --- Python ----------------------------------------------------------------------------------------------
def python() -> dict[str, str]:
    """Return the pages of the public API: directives that mkdocstrings fills from the docstrings."""
    made = {
        f"{PYTHON}{name}.md": _api_page(title, text, ledgermq.client, names, RETURNED.get(name, ()))
        for name, (title, text, names) in TOPICS.items()
    }
    tree = (inspect.getdoc(ledgermq.client.errors) or "").partition("\n\n")[2].replace("`", "")
    errors = f"Every failure of the client is one of these errors.\n\n```text\n{tree}\n```"
    made[f"{PYTHON}errors.md"] = _api_page("Errors", errors, ledgermq.client, error_names())
    sync = "`ledgermq.client.sync`: the same without asyncio, safe to use from several threads."
    names = tuple(ledgermq.client.sync.__all__)
    made[f"{PYTHON}sync.md"] = _api_page("Synchronous clients", sync, ledgermq.client.sync, names)
    return made


def error_names() -> tuple[str, ...]:
    """Return the errors of `ledgermq.client`, the base class first."""
    found = [
        name
        for name in ledgermq.client.__all__
        if inspect.isclass(kind := getattr(ledgermq.client, name)) and issubclass(kind, LedgerMQError)
    ]
    return ("LedgerMQError", *(name for name in found if name != "LedgerMQError"))


def _api_page(
    title: str, text: str, home: ModuleType, names: tuple[str, ...], returned: tuple[type, ...] = ()
) -> str:
    public = [_directive(home, name) for name in names]
    records = [_directive(sys.modules[kind.__module__], kind.__name__) for kind in returned]
    return "\n\n".join((f"# {title}", text, *public, *records)) + "\n"


def _directive(home: ModuleType, name: str) -> str:
    """Return what mkdocstrings replaces by the docstrings of a class, with a table of a record's fields."""
    kind = getattr(home, name)
    inherited = {
        member
        for base in kind.__mro__[1:]
        if base.__module__.startswith("ledgermq.client") and base.__name__ not in getattr(home, "__all__", ())
        for member in vars(base)
        if not member.startswith("_")
    } - set(vars(kind))
    lines = [f"::: {home.__name__}.{name}"]
    if inherited and not issubclass(kind, Exception):
        lines += ["    options:", f"      inherited_members: [{', '.join(sorted(inherited))}]"]
    is_record = dataclasses.is_dataclass(kind) or issubclass(kind, tuple)
    return "\n".join([*lines, *(["", *_fields(kind)] if is_record else [])])


def synchronous_clients() -> dict[str, str]:
    """Return the sources of the synchronous clients as `spelled_out` writes them, by path."""
    home = ledgermq.client.sync.__name__
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{home}.")]
    return {f"client/sync/{Path(str(each.__file__)).name}": spelled_out(each) for each in modules}


def spelled_out(module: ModuleType) -> str:
    """Return the source of a module of synchronous clients with its forwarders as methods.

    `send = awaited(AsyncProducer.send)` becomes a method with the signature and docstring of that method:
    mkdocstrings reads sources, and would show an attribute.
    """
    lines = inspect.getsource(module).splitlines()
    for kind in reversed(ast.parse("\n".join(lines)).body):
        for node in reversed(kind.body if isinstance(kind, ast.ClassDef) else []):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) in ("awaited", "counted", "direct")
            ):
                method = inspect.unwrap(eval(ast.unparse(node.value.args[0]), vars(module)))
                (made,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
                assert isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef)
                arguments, returns = ast.unparse(made.args), ast.unparse(made.returns or ast.Constant(None))
                text = f'def {made.name}({arguments}) -> {returns}:\n    """{ast.get_docstring(made)}"""\n'
                lines[node.lineno - 1 : node.end_lineno] = textwrap.indent(text, "    ").splitlines()
    return "\n".join(lines) + "\n"


def _fields(kind: type) -> list[str]:
    """Return a table of the fields of a dataclass or named tuple, explained by the comments beside them."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            above = list(itertools.takewhile(_is_field_comment, reversed(lines[: node.lineno - 1])))
            beside = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :].partition("#")[2]
            meaning = " ".join(line.strip().removeprefix("#:").strip() for line in [*reversed(above), beside])
            default = f"`{ast.unparse(node.value)}`" if node.value else ""
            rows.append(
                _row(
                    f"`{ast.unparse(node.target)}`",
                    f"`{ast.unparse(node.annotation)}`",
                    default,
                    meaning.strip(),
                )
            )
    return rows


def _is_field_comment(line: str) -> bool:
    return line.strip().startswith("#:")


def main(arguments: list[str]) -> int:
    """Write all pages below a folder."""
    for name, text in pages().items():
        path = Path(arguments[0]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
