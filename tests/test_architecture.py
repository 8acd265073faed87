"""The rules of the architecture, as tests (decisions D1 and D2).

* Core modules are pure: no clock, socket, file, thread, asyncio or global random; no `async def`.
* Imports go in one direction: every package may use `proto`; broker → raft, spark_jobs → client; nothing else.
* The packages are imported as `ledgermq.<folder>`; a bare `import raft` would find the folder, or the tests.
* No `common`, no `utils`. Every public module says in its docstring what it owns.

A new core module is added to `CORE` by whoever writes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("proto", "raft", "broker", "nameserver", "client", "spark_jobs")

ALLOWED: dict[str, set[str]] = {
    "proto": set(),
    "raft": {"proto"},
    "broker": {"proto", "raft"},
    "nameserver": {"proto"},
    "client": {"proto"},
    "spark_jobs": {"proto", "client"},
}

#: Modules that decide and do no I/O. Names that do not exist yet are allowed, so that a rename shows in review.
CORE: dict[str, tuple[str, ...]] = {
    "proto": (
        "entry",
        "errors",
        "foreign_text",
        "record",
        "values",
        "varint",
    ),
    "raft": (
        "bootstrap",
        "candidate",
        "checked_frame",
        "core",
        "core_config",
        "core_state",
        "follower",
        "greeting",
        "hello",
        "lateness",
        "leader",
        "leader_state",
        "log_contents",
        "log_limit",
        "log_time",
        "log_view",
        "messages",
        "outputs",
        "persist_queue",
        "progress",
        "proposals",
        "quorum",
        "read_rounds",
        "replication",
        "scrub_plan",
        "segment_pins",
        "segment_scan",
        "status",
        "storage_opening",
        "stream_watch",
        "tail_cache",
        "term_runs",
        "tick_schedule",
        "types",
        "votes",
        "wire",
    ),
    "broker": (
        "allocation",
        "checkpoint",
        "command_codecs",
        "commands",
        "consume_queue",
        "consumption",
        "coordinator",
        "dedup",
        "effects",
        "errors",
        "filter_watch",
        "groups",
        "key_hashes",
        "leader_view",
        "leases",
        "log_wire",
        "members",
        "membership_shard",
        "memberships",
        "messaging_route",
        "messaging_settings",
        "messaging_status",
        "messaging_validation",
        "messaging_wire",
        "produce_records",
        "read_advice",
        "rebuild",
        "receipt_handle",
        "refusals",
        "retention_policy",
        "selection",
        "sessions",
        "state",
        "topics",
        "unconsumed",
    ),
    "nameserver": (
        "config",
        "errors",
        "registrations",
        "route_table",
    ),
    "client": (
        "assignment",
        "batching",
        "consumer_statistics",
        "demo_ledger",
        "encoding",
        "errors",
        "fetch_buffer",
        "fetched_records",
        "figures",
        "intake",
        "log_ends",
        "message",
        "owned_queue",
        "progress",
        "push_options",
        "queue_selection",
        "read_source",
        "retry_policy",
        "status_report",
        "text_table",
        "topic_route",
    ),
    "spark_jobs": (
        "block_digest",
        "dump_rows",
        "entry_checks",
        "entry_table",
        "errors",
        "findings",
        "group_checks",
        "section_checks",
        "verdict",
    ),
}

IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "grpc",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "uvloop",
}

#: Standard-library names of IMPURE modules that are pure after all.
PURE_NAMES = {("random", "Random"), ("pathlib", "PurePosixPath"), ("pathlib", "PurePath")}


def modules(package: str) -> list[Path]:
    """Return the package's hand-written modules."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [path for path in paths if "_pb2" not in path.name and "__pycache__" not in path.parts]


ALL = [path for package in PACKAGES for path in modules(package)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (module, imported name or "", only for the type checker) of every import, relative ones made absolute."""
    package = ["ledgermq", *path.relative_to(ROOT).parts[:-1]]
    tree = parse(path)
    for_types = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", id(node) in for_types
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name, id(node) in for_types


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def core_modules() -> list[Path]:
    paths = (ROOT / package / f"{name}.py" for package, names in CORE.items() for name in names)
    return [path for path in paths if path.exists()]


def test_every_package_exists_and_is_found() -> None:
    assert all((ROOT / package / "__init__.py").exists() for package in PACKAGES)
    assert core_modules(), "no core module was found: the list in this file is out of date"


@pytest.mark.parametrize("path", core_modules(), ids=name_of)
def test_core_module_imports_nothing_that_does_io(path: Path) -> None:
    impure = [
        f"{module} {name}".strip()
        for module, name, for_types in imports(path)
        if module.split(".")[0] in IMPURE and not for_types and not _is_pure(path, module, name)
    ]
    assert not impure, f"{name_of(path)} is core and imports {impure}"


def _is_pure(path: Path, module: str, name: str) -> bool:
    """Whether only pure names are taken: `from random import Random`, or `import random` used as `random.Random`."""
    if name:
        return (module, name) in PURE_NAMES
    used = {
        node.attr
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    }
    return bool(used) and all((module, attribute) in PURE_NAMES for attribute in used)


@pytest.mark.parametrize("path", core_modules(), ids=name_of)
def test_core_module_has_no_coroutines_and_opens_no_files(path: Path) -> None:
    for node in ast.walk(parse(path)):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), (
            f"{name_of(path)}:{node.lineno} is async"
        )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_imports_go_in_the_allowed_direction(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for module, name, _ in imports(path):
        parts = module.split(".")
        if parts[0] != "ledgermq":
            continue
        target = parts[1] if len(parts) > 1 else name
        allowed = ALLOWED[package] | {package}
        assert target in allowed, f"{name_of(path)} imports ledgermq.{target}; allowed are {sorted(allowed)}"


@pytest.mark.parametrize("path", [*ALL, *sorted((ROOT / "tests").rglob("*.py"))], ids=name_of)
def test_packages_are_imported_with_their_prefix(path: Path) -> None:
    for module, _, _ in imports(path):
        assert module.split(".")[0] not in PACKAGES, (
            f"{name_of(path)}: import ledgermq.{module}, not {module}"
        )


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_no_module_is_a_drawer_for_everything(path: Path) -> None:
    names = {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    assert not names & {"common", "utils", "util", "helpers", "misc"}, name_of(path)


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_public_module_has_a_docstring(path: Path) -> None:
    private = path.stem.startswith("_") and not path.stem.startswith("__")
    assert private or ast.get_docstring(parse(path)), f"{name_of(path)} does not say what it owns"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=name_of)
def test_every_folder_of_tests_is_a_package(path: Path) -> None:
    """Else `import raft` inside tests/raft would find the tests."""
    assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"
