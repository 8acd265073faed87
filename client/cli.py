"""The command line `ledgermq`: collects the commands and turns every failure into one readable error.

Owns: the typer app, the form of usage errors, exit codes (0 ok, 1 failed, 2 usage), no traceback for users.
Must not: contain a command. Commands live in `cli_<area>.py`; each has `register(app)`.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata
from typing import Annotated, Any, Final

import typer

from .cli_output import close_output, open_standard_streams, print_error
from .errors import InvalidAddressError, LedgerMQError, did_you_mean, similar_names

#: Modules of this package that add commands to the app by `register(app: typer.Typer) -> None`, in help order.
COMMAND_MODULES: Final = (
    "cli_up",  # up, broker, nameserver
    "cli_topic",
    "cli_group",
    "cli_messages",  # send, consume
    "cli_message",  # message get, query, trace
    "cli_cluster",
    "cli_dump",  # dump, check
    "cli_demo",
    "cli_bench",
    "cli_admin",
)

# typer may carry its own click, so the classes are taken from what typer exports.
_UsageFailure: Final[type[Any]] = typer.BadParameter.__mro__[1]
_ClickFailure: Final[type[Any]] = typer.BadParameter.__mro__[2]


def build_app() -> typer.Typer:
    """Return the app with all commands."""
    app = typer.Typer(
        name="ledgermq",
        help="A replicated message broker: send, consume, and look after clusters.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in COMMAND_MODULES:
        importlib.import_module(f"{__package__}.{name}").register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ledgermq {metadata.version('ledgermq')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A replicated message broker: send, consume, and look after clusters."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exits with 0, 1 (failed) or 2 (usage); commands may exit with codes of their own."""
    open_standard_streams()
    sys.exit(run_cli(sys.argv[1:] if arguments is None else arguments))


def run_cli(arguments: list[str]) -> int:
    """Run one command line and return its exit code. No exception leaves, unless LEDGERMQ_DEBUG=1."""
    debug = os.environ.get("LEDGERMQ_DEBUG") == "1"
    try:
        result = build_app()(arguments, prog_name="ledgermq", standalone_mode=False)
        sys.stdout.flush()  # a reader that has gone is noticed here, and not at the end of the interpreter
        return result if isinstance(result, int) else 0
    except _UsageFailure as failure:
        return _usage(failure)
    except _ClickFailure as failure:
        print_error(failure.format_message())
        return int(failure.exit_code)
    except typer.Abort:
        print_error("stopped by the user.")
        return 1
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, SystemExit) as failure:
        # typer and rich make SystemExit(1) of a broken pipe.
        if isinstance(failure, SystemExit) and not isinstance(failure.__context__, BrokenPipeError):
            raise
        close_output()  # the reader (head, less) has gone: nothing is wrong, and nothing more can be written
        return 0
    except LedgerMQError as failure:
        if debug:
            raise
        print_error(str(failure))
        return 2 if isinstance(failure, InvalidAddressError) else 1
    except ValueError as failure:
        if debug:
            raise
        print_error(f"{failure}.")
        return 2
    except OSError as failure:
        if debug:
            raise
        print_error(f"{failure}. See the whole trace: run it again with LEDGERMQ_DEBUG=1 in the environment")
        return 1
    except Exception as failure:
        if debug:
            raise
        print_error(
            f"internal error: {type(failure).__name__}: {failure}. This is a defect of LedgerMQ. "
            "See the whole trace: run it again with LEDGERMQ_DEBUG=1 in the environment"
        )
        return 1


def _usage(failure: Any) -> int:
    """Print a usage error, or the help when nothing was asked for."""
    if type(failure).__name__ == "NoArgsIsHelpError":
        typer.echo(failure.ctx.get_help())
        return 0
    text = str(failure.format_message()).rstrip(".")
    context = failure.ctx
    option = getattr(failure, "option_name", "")
    if option and "ossible options" not in text and "Did you mean" not in text and context is not None:
        known = [name for parameter in context.command.params for name in parameter.opts]
        text = f"{text}. {did_you_mean(similar_names(option, known))}".rstrip(". ")
    path = context.command_path if context is not None else "ledgermq"
    print_error(f"{text}{'' if text.endswith('?') else '.'} See: {path} --help")
    return 2


if __name__ == "__main__":
    main()
