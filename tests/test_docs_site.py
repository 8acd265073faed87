"""The reference pages have all commands, settings and public names; others use commands that exist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

import ledgermq.client
import ledgermq.client.sync
from deploy import docs_reference
from ledgermq.broker.config import BrokerConfig, ListenerConfig
from ledgermq.client.cli.command_line import COMMANDS, build_app, load
from ledgermq.nameserver import config as nameserver_config

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = docs_reference.pages()
OWN: Final = [ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
#: Have flags of programs of their own: those are looked at in the configuration.
PROGRAMS: Final = ("broker", "nameserver")


def commands() -> dict[str, Any]:
    """Return every command by its words, as the modules of the command line register them."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from below(f"{words} {name}", each)

    found = {"ledgermq": typer.main.get_command(build_app())}
    for module in COMMANDS:
        for name, command in load(module).items():
            found |= below(f"ledgermq {name}", command)
    return found


def options(command: Any) -> set[str]:
    """Return the flags of a command, short ones too."""
    return {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading of a page."""
    parts = re.split(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_command_line_page_has_every_command_with_every_option() -> None:
    shown = sections(PAGES["reference/cli.md"])
    known = commands()
    assert set(shown) - {"Command line"} == set(known)
    assert len(known) > 40
    for words, command in known.items():
        missing = [flag for flag in options(command) if not re.search(rf"(?<!\w){flag}\b", shown[words])]
        assert not missing, f"{words}: {missing}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_flags_of_their_own_show_them(name: str) -> None:
    assert "--config" in sections(PAGES["reference/cli.md"])[f"ledgermq {name}"]


def test_the_configuration_page_has_every_setting_with_its_meaning() -> None:
    page = sections(PAGES["reference/configuration.md"])
    broker = dict(re.findall(r"^\| `(\w+)` \|(.*)$", page["Broker"], re.MULTILINE))
    assert set(broker) == {*BrokerConfig.model_fields, *ListenerConfig.model_fields}
    for key in BrokerConfig.model_fields:
        default, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", broker[key])[:2])
        assert meaning, key
        plain = BrokerConfig.model_fields[key].default
        if isinstance(plain, int) and not isinstance(plain, bool):
            assert default == f"`{plain}`", key
    nameserver = re.findall(r"^\| `(\w+)` \| \S", page["Nameserver"], re.MULTILINE)
    assert set(nameserver) == set(nameserver_config._KEYS)


def test_the_python_pages_have_every_public_name_once() -> None:
    shown = [name for page in PAGES.values() for name in re.findall(r"^::: (.*)$", page, re.MULTILINE)]
    public = {f"ledgermq.client.{name}" for name in ledgermq.client.__all__ if name != "__version__"}
    public |= {f"ledgermq.client.sync.{name}" for name in ledgermq.client.sync.__all__}
    returned = [
        f"{kind.__module__}.{kind.__name__}" for row in docs_reference.RETURNED.values() for kind in row
    ]
    assert sorted(shown) == sorted([*public, *returned])


def test_records_are_shown_with_their_fields_and_what_the_comments_beside_them_say() -> None:
    page = PAGES["reference/python/admin.md"]
    fields = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert fields >= {each.name for each in dataclasses.fields(ledgermq.client.FoundMessages)}
    assert re.search(r"^\| `missing_from_ms` \| `int` \| `0` \| .*(ms)", page, re.MULTILINE)


def test_methods_of_synchronous_clients_are_shown_with_signature_and_docstring() -> None:
    sources = docs_reference.synchronous_clients()
    for name in ledgermq.client.sync.__all__:
        kind = getattr(ledgermq.client.sync, name)
        source = sources[f"client/sync/{Path(inspect.getfile(kind)).name}"]
        (shown,) = (each for each in ast.parse(source).body if getattr(each, "name", "") == name)
        methods = {each.name: each for each in ast.walk(shown) if isinstance(each, ast.FunctionDef)}
        for word, method in vars(kind).items():
            if inspect.isfunction(method) and not word.startswith("_"):
                arguments = methods[word].args
                words = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)]
                assert words == list(inspect.signature(method).parameters), f"{name}.{word}"
                assert ast.get_docstring(methods[word]) == inspect.getdoc(method), f"{name}.{word}"


def public_classes() -> list[type]:
    """Return the public classes of both clients."""
    homes = ((ledgermq.client, ledgermq.client.__all__), (ledgermq.client.sync, ledgermq.client.sync.__all__))
    found = [getattr(home, name) for home, names in homes for name in names if name != "__version__"]
    return [each for each in found if inspect.isclass(each)]


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_public_class_and_method_has_a_docstring(kind: type) -> None:
    own = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    called = {name: value for name, value in own.items() if callable(value) or isinstance(value, property)}
    assert kind.__doc__
    assert not [name for name, value in called.items() if not (value.__doc__ or "").strip()]


@pytest.mark.parametrize(
    "module", [ledgermq.client, ledgermq.client.sync], ids=lambda module: module.__name__
)
@pytest.mark.parametrize(
    "name", ["Producer", "SimpleConsumer", "PullConsumer", "PushConsumer", "Admin", "BrokerGroupAdmin"]
)
def test_the_main_classes_have_an_example_that_calls_what_exists(module: Any, name: str) -> None:
    kind = getattr(module, name)
    lines = (inspect.getdoc(kind) or "").partition("Example:\n\n")[2].splitlines()
    example = textwrap.dedent("\n".join(itertools.takewhile(lambda line: line[:4].strip() == "", lines)))
    body = textwrap.indent(example, "    ")
    tree = ast.parse(f"async def example():\n{body}")
    opened = [
        item for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith) for item in node.items
    ]
    (client,) = [item for item in opened if isinstance(item.context_expr, ast.Call)]
    assert ast.unparse(client.context_expr.func) == name  # type: ignore[attr-defined]
    variable = ast.unparse(client.optional_vars or client.context_expr)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == variable
    }
    assert used and not [attribute for attribute in used if not hasattr(kind, attribute)]


@pytest.mark.parametrize("page", OWN, ids=lambda page: page.stem)
def test_commands_of_tutorial_and_how_to_pages_exist(page: Path) -> None:
    known = commands()
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in filter(None, map(str.strip, block.splitlines())):
            words = shlex.split(line)
            if words[0] == "make":
                assert set(words[1:]) <= targets, line
            elif words[0] == "ledgermq":
                end = max(count for count in range(1, 4) if " ".join(words[:count]) in known)
                used = {word for word in words[end:] if word.startswith("-")}
                assert end > 1 and used <= options(known[" ".join(words[:end])]), line
            else:
                assert words[0] in ("source", "python", "kill"), line


def test_programs_of_the_tutorial_can_be_parsed() -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        compile(program, "tutorial", "exec")
