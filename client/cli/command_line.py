"""Command line of `ledgermq`: loads the requested command, and turns every failure into one readable error.

Owns: the list of commands, the format of usage errors, exit codes (0 ok, 1 failed, 2 usage, 130 Ctrl-C).
Users see no traceback. Must not: contain a command, or load one that was not requested. Each module of this
folder that is listed here has `register(app)`.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from ..interrupts import EXIT_INTERRUPTED, raise_on_interrupt
from .grpc_settings import load_grpc
from .standard_streams import close_output

#: Modules of this package that add commands with `register(app: typer.Typer) -> None`, in help order, with
#: their line in the list of commands, which is printed without loading any module.
COMMANDS: Final = {
    "up": {
        "up": "Start a whole cluster on this machine: nameserver and brokers.",
        "broker": "Run one broker node.",
        "nameserver": "Run one nameserver.",
    },
    "topic": {"topic": "Create, list, describe, update, delete and hold topics."},
    "group": {"group": "Look after consumer groups, and see how far they are."},
    "send_consume": {
        "send": "Send messages and wait until they are committed.",
        "consume": "Receive, print and acknowledge messages.",
    },
    "message": {"message": "Look up stored messages, and what became of one."},
    "cluster": {"cluster": "Look at a cluster and its leaders."},
    "dump": {
        "dump": "Copy every node's log as it stands on disk.",
        "check": "Compare the nodes' logs on Spark.",
    },
    "spark": {"spark": "Query and analyse topics with Spark, archive and restore them."},
    "restore": {"restore": "Make the folders of a new broker group from dumps."},
    "demo": {"demo": "Kill the leader under load, and prove that nothing is lost."},
    "bench": {"bench": "Measure throughput and latency of this cluster, from here."},
    "retention": {"admin": "Look after the storage of a cluster."},
}

# typer may bundle its own click, so use the classes that typer exports.
_UsageFailure: Final[type[Any]] = typer.BadParameter.__mro__[1]
_ClickFailure: Final[type[Any]] = typer.BadParameter.__mro__[2]


class LazyCommands(typer.core.TyperGroup):
    """All commands: names and one line of help at once, the rest of one when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._homes = {name: module for module, names in COMMANDS.items() for name in names}
        self._listing = False
        for names in COMMANDS.values():
            for name, text in names.items():
                self.commands[name] = typer.core.TyperCommand(name, help=text)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded; while all are listed, what stands for it."""
        if not self._listing and (home := self._homes.pop(cmd_name, None)) is not None:
            self.commands[cmd_name] = load(home)[cmd_name]
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command: it is loaded before Ctrl-C finds anything that must be ended."""
        if found := [*getattr(ctx, "_protected_args", ()), *getattr(ctx, "protected_args", ())]:
            self.get_command(ctx, found[0])
        raise_on_interrupt()
        return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without loading any."""
        self._listing = True
        try:
            super().format_commands(ctx, formatter)
        finally:
            self._listing = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names that begin so, likewise."""
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False


def load(module: str) -> dict[str, Any]:
    """Return the commands of a module, by name."""
    app = typer.Typer(rich_markup_mode=None, context_settings=_HELP_OPTIONS)
    app.callback()(lambda: None)  # makes a single command a sub-command, too
    load_grpc()  # before the commands, which import it
    importlib.import_module(f"{__package__}.{module}").register(app)
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


_HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}


def build_app() -> typer.Typer:
    """Return the app with all commands."""
    app = typer.Typer(
        name="ledgermq",
        cls=LazyCommands,
        help="A replicated message broker: send, consume, and look after clusters.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_HELP_OPTIONS,
    )
    app.callback()(_root)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # takes a tenth of a second

        typer.echo(f"ledgermq {metadata.version('ledgermq')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A replicated message broker: send, consume, and look after clusters."""


def run_command_line(arguments: list[str]) -> int:
    """Run one command line and return its exit code. No exception leaves, unless LEDGERMQ_DEBUG=1."""
    debug = os.environ.get("LEDGERMQ_DEBUG") == "1"
    try:
        result = build_app()(arguments, prog_name="ledgermq", standalone_mode=False)
        sys.stdout.flush()  # detects a reader that is gone here, not when the interpreter ends
        return result if isinstance(result, int) else 0
    except _UsageFailure as failure:
        return _usage(failure)
    except _ClickFailure as failure:
        _print_error(failure.format_message())
        return int(failure.exit_code)
    except typer.Abort as failure:  # typer raises it for Ctrl-C, too
        if isinstance(failure.__cause__ or failure.__context__, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        _print_error("stopped by the user.")
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as failure:
        # typer and rich turn a broken pipe into SystemExit(1).
        if isinstance(failure, SystemExit) and not isinstance(failure.__context__, BrokenPipeError):
            raise
        close_output()  # the reader (head, less) is gone: not a failure, and no more output is possible
        return 0
    except Exception as failure:
        if debug:
            raise
        return _failed(failure)


def _failed(failure: Exception) -> int:
    """Print a failure; return the exit code."""
    from ..errors import InvalidAddressError, LedgerMQError

    trace = "See the whole trace: run it again with LEDGERMQ_DEBUG=1 in the environment"
    if isinstance(failure, LedgerMQError):
        _print_error(str(failure))
        return 2 if isinstance(failure, InvalidAddressError) else 1
    if isinstance(failure, ValueError):
        _print_error(f"{failure}.")
        return 2
    if isinstance(failure, OSError):
        where = f"{failure.filename}: " if failure.filename else ""
        full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = (
            "the disk is full. Make room there, and run it again" if full else failure.strerror or failure
        )
        _print_error(f"{where}{reason}. {trace}")
        return 1
    _print_error(
        f"internal error: {type(failure).__name__}: {failure}. This is a defect of LedgerMQ. {trace}"
    )
    return 1


def _print_error(text: str) -> None:
    from .output import print_error

    print_error(text)


def _usage(failure: Any) -> int:
    """Print a usage error, or the help when nothing was asked for."""
    if type(failure).__name__ == "NoArgsIsHelpError":
        typer.echo(failure.ctx.get_help())
        return 0
    if wanted := _number_wanted(failure):
        failure.message = wanted
    text = str(failure.format_message()).rstrip(".")
    context = failure.ctx
    from ..errors import did_you_mean, similar_names

    option = getattr(failure, "option_name", "")
    if option and "ossible options" not in text and "Did you mean" not in text and context is not None:
        known = [name for parameter in context.command.params for name in parameter.opts]
        text = f"{text}. {did_you_mean(similar_names(option, known))}".rstrip(". ")
    path = context.command_path if context is not None else "ledgermq"
    _print_error(f"{text}{'' if text.endswith('?') else '.'} See: {path} --help")
    return 2


def _number_wanted(failure: Any) -> str:
    """Return which numbers an option takes, if it refused its value; "": it takes none."""
    refused: Any = failure.__cause__  # of the validation that typer uses, whose text names one bound
    descriptor: Any = getattr(getattr(failure, "param", None), "type_descriptor", None)
    kind = getattr(descriptor, "annotation", None)
    if kind not in (int, float) or not hasattr(refused, "errors"):
        return ""
    low, high = descriptor.parameter_info.min, descriptor.parameter_info.max
    bounds = f"{'' if low is None else f' from {low:,}'}{'' if high is None else f' to {high:,}'}"
    number = "a whole number" if kind is int else "a number"
    on = " on" if high is None and low is not None else ""
    return f"it must be {number}{bounds}{on}, not {refused.errors()[0]['input']!r}"
