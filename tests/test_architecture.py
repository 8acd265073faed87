"""The rules of the architecture, as tests (decisions D1 and D2).

* Core modules are pure: no clock, socket, file, thread, asyncio or global random; no `async def`.
* Imports go in one direction: every package may use `proto`, all but spark_jobs `rpc`; broker → raft,
  spark_jobs → client; nothing else.
* The packages are imported as `ledgermq.<folder>`; a bare `import raft` would find the folder, or the tests.
* No `common`, no `utils`. Every public module says in its docstring what it owns.
* No two modules and no two public classes have one name.

* Inside raft, broker and client modules live in rooms (sub-packages); rooms import each other as `INSIDE`
  says, and never in a circle. Neither do modules.

A new pure module is added to `PURE` by whoever writes it, unless it is in a folder of `PURE_FOLDERS`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("proto", "rpc", "raft", "broker", "nameserver", "client", "spark_jobs")

ALLOWED: dict[str, set[str]] = {
    "proto": set(),
    "rpc": set(),
    "raft": {"proto", "rpc"},
    "broker": {"proto", "raft", "rpc"},
    "nameserver": {"proto", "rpc"},
    "client": {"proto", "rpc"},
    "spark_jobs": {"proto", "client"},
}

#: Folders and modules that decide and do no I/O. Names that do not exist yet are allowed, so that a rename
#: shows in review.
PURE_FOLDERS = ("raft/core", "broker/state", "broker/wire")
PURE: dict[str, tuple[str, ...]] = {
    "proto": (
        "block_digest",
        "digest_file",
        "entry",
        "errors",
        "foreign_text",
        "record",
        "values",
        "varint",
    ),
    "rpc": (
        "allowance",
        "flow_control",
        "foreign_client",
        "grpc_options",
        "header_blocks",
        "http2_frames",
        "wire_limits",
    ),
    "raft": (
        "folder/bootstrap",
        "folder/opening",
        "log/contents",
        "log/segment_scan",
        "repair/digest_builder",
        "repair/scrub_plan",
        "node_status",
        "transport/checked_frame",
        "transport/hello",
        "transport/stream_watch",
        "transport/wire",
        "damage",
        "types",
    ),
    "broker": (
        "checkpoint/layout",
        "cluster/members",
        "errors",
        "leader/allocation",
        "leader/coordinator",
        "leader/leader_view",
        "leader/selection",
        "reading/key_hashes",
        "reading/read_advice",
        "refusals",
        "retention/policy",
        "retention/protection",
        "service/sessions",
    ),
    "nameserver": (
        "config",
        "errors",
        "registrations",
        "route_table",
    ),
    "client": (
        "admin/status_report",
        "admin/log_ends",
        "batches/row_packer",
        "bench/figures",
        "cluster/leader_tracker",
        "cluster/topic_route",
        "consume/fetch_buffer",
        "consume/fetched_records",
        "consume/intake",
        "consume/read_source",
        "consume/statistics",
        "demo/ledger",
        "errors",
        "message",
        "pauses",
        "produce/encoding",
        "produce/queue_selection",
        "produce/retry_policy",
        "produce/send_window",
        "push/assignment",
        "push/finished_prefix",
        "push/options",
        "push/owned_queue",
    ),
    "spark_jobs": (
        "dump_rows",
        "entry_checks",
        "entry_table",
        "errors",
        "findings",
        "group_checks",
        "lake/compaction_plan",
        "lake/lake_state",
        "lake/resume_point",
        "lake/row_checksums",
        "section_checks",
        "topics/analysis_figures",
        "topics/message_columns",
        "topics/read_plan",
        "topics/stream_offsets",
        "verdict",
    ),
}

#: The rooms of each package, and which other rooms of it each may import. Whoever reads the tree from above
#: finds here what builds on what.
INSIDE: dict[str, dict[str, set[str]]] = {
    "raft": {
        "core": set(),
        "disk": set(),
        "ports": set(),
        "log": {"core", "disk"},
        "transport": {"core", "ports"},
        "folder": {"core", "disk", "log", "transport"},
        "drive": {"core", "disk", "folder", "log", "transport"},
        "repair": {"core", "disk", "folder", "log"},
        "reset": {"core", "disk", "drive", "folder", "log", "transport"},
        "node": {"core", "disk", "drive", "folder", "log", "repair", "reset", "transport"},
    },
    "broker": {
        "state": set(),
        "wire": set(),
        "ports": set(),
        "reading": {"state"},
        "checkpoint": {"reading", "state"},
        "backup": {"checkpoint", "reading", "state"},
        "cluster": {"reading", "wire"},
        "leader": {"cluster", "state", "wire"},
        "service": {"cluster", "leader", "ports", "reading", "state", "wire"},
        "native": {"cluster", "leader", "reading", "service", "state", "wire"},
        "official": {"cluster", "leader", "reading", "service", "state", "wire"},
        "admin": {
            "backup",
            "checkpoint",
            "cluster",
            "leader",
            "reading",
            "service",
            "state",
            "wire",
        },
        "retention": {"cluster", "leader", "reading", "service", "state"},
    },
    "client": {
        "cluster": set(),
        "local": set(),
        "trace": set(),
        "produce": {"cluster", "trace"},
        "consume": {"cluster", "produce", "trace"},
        "push": {"cluster", "consume"},
        "batches": {"cluster", "consume", "produce"},
        "admin": {"cluster", "consume", "produce", "trace"},
        "sync": {"admin", "consume", "produce", "push"},
        "bench": {"admin", "cluster", "consume", "produce"},
        "demo": {"admin", "consume", "local", "produce"},
        "cli": {"admin", "bench", "cluster", "consume", "demo", "local", "produce", "trace"},
    },
    "spark_jobs": {"topics": set(), "lake": {"topics"}},
}
#: Modules of a package's top folder that its rooms may import. The others import rooms, and no room imports
#: them.
ROOT_MODULES = {
    "raft": {"config", "damage", "errors", "metrics", "peer_tls", "state_machine", "node_status", "types"},
    "broker": {"background", "config", "errors", "metrics", "refusals", "replica"},
    "client": {
        "arguments", "async_client", "durations", "errors", "event_loop", "interrupts", "message", "pauses",
    },
    "spark_jobs": {"errors", "package", "page_templates", "session", "stage_progress"},
}  # fmt: skip
#: What these modules of the top folder need of rooms that need nothing themselves.
ROOT_NEEDS = {"raft/config.py": "core", "raft/metrics.py": "ports"}

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
PURE_NAMES = {
    ("random", "Random"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "PurePath"),
    ("urllib.parse", "quote"),
}


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
    """Yield (module, imported name or "", only for the type checker) of every import, relative ones made
    absolute.
    """
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
    named = (ROOT / package / f"{name}.py" for package, names in PURE.items() for name in names)
    inside = (path for folder in PURE_FOLDERS for path in sorted((ROOT / folder).glob("*.py")))
    return [path for path in (*named, *inside) if path.exists()]


def room_of(path: Path) -> str:
    """Return the room that a module is in; "" for one of the package's top folder."""
    return path.relative_to(ROOT).parts[1] if len(path.relative_to(ROOT).parts) > 2 else ""


def module_named(module: str, name: str) -> Path | None:
    """Return the file of our own module that an import takes, or takes something of."""
    inside = ROOT.joinpath(*module.split(".")[1:])
    for path in (
        inside / f"{name}.py",
        inside / name / "__init__.py",
        inside.with_suffix(".py"),
        inside / "__init__.py",
    ):
        if path.exists():
            return path
    return None


def targets(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield (our own module, only for the type checker) of every import."""
    for module, name, for_types in imports(path):
        target = module_named(module, name) if module.split(".")[0] == "ledgermq" else None
        if target is not None:
            yield target, for_types


def test_every_package_exists_and_is_found() -> None:
    assert all((ROOT / package / "__init__.py").exists() for package in PACKAGES)
    assert core_modules(), "no pure module was found: the list in this file is out of date"


def test_every_folder_is_part_of_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        path.parent.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    named = {f"ledgermq.{'.'.join(folder.parts)}": str(folder) for folder in found}
    assert (set(settings["packages"]), settings["package-dir"]) == (set(named), named)


@pytest.mark.parametrize("path", core_modules(), ids=name_of)
def test_core_module_imports_nothing_that_does_io(path: Path) -> None:
    impure = [
        f"{module} {name}".strip()
        for module, name, for_types in imports(path)
        if module.split(".")[0] in IMPURE and not for_types and not _is_pure(path, module, name)
    ]
    assert not impure, f"{name_of(path)} is core and imports {impure}"


def _is_pure(path: Path, module: str, name: str) -> bool:
    """Whether only pure names are taken: `from random import Random`, or `import random` used as
    `random.Random`.
    """
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


WITH_ROOMS = [path for path in ALL if path.relative_to(ROOT).parts[0] in INSIDE]


@pytest.mark.parametrize("path", WITH_ROOMS, ids=name_of)
def test_rooms_import_what_the_table_allows(path: Path) -> None:
    package, room = path.relative_to(ROOT).parts[0], room_of(path)
    for target, _ in targets(path):
        other = room_of(target)
        if target.relative_to(ROOT).parts[0] != package or other == room:
            continue
        if not room:  # the top folder: what rooms import must not need rooms
            free = path.stem not in ROOT_MODULES[package] or package == "broker"
            assert free or ROOT_NEEDS.get(name_of(path)) == other, (
                f"{name_of(path)} imports {name_of(target)}"
            )
        elif not other:
            known = target.stem in ROOT_MODULES[package] or target.stem == "__init__"
            assert known, f"{name_of(path)} imports {name_of(target)}, which is assembled from rooms"
        else:
            allowed = INSIDE[package][room]
            assert other in allowed, (
                f"{name_of(path)} imports {name_of(target)}; {room} may import {sorted(allowed)}"
            )


@pytest.mark.parametrize("package", sorted(INSIDE))
def test_the_table_of_rooms_is_the_tree_without_circles(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(INSIDE[package])
    placed: set[str] = set()
    while placed != folders:
        ready = {room for room in folders - placed if INSIDE[package][room] <= placed}
        assert ready, f"these need each other: {sorted(folders - placed)}"
        placed |= ready


@pytest.mark.parametrize("package", sorted(INSIDE))
def test_every_room_is_used_as_the_table_says(package: str) -> None:
    """An allowance that nobody uses any more hides the next knot."""
    used: dict[str, set[str]] = {room: set() for room in INSIDE[package]}
    for path in WITH_ROOMS:
        if path.relative_to(ROOT).parts[0] == package and room_of(path):
            found = {
                room_of(target) for target, _ in targets(path) if target.relative_to(ROOT).parts[0] == package
            }
            used[room_of(path)] |= found - {"", room_of(path)}
    assert used == INSIDE[package]


@pytest.mark.parametrize(
    "room", [ROOT / package / room for package, rooms in INSIDE.items() for room in rooms], ids=name_of
)
def test_every_room_says_what_it_owns_and_where_to_begin(room: Path) -> None:
    text = " ".join((ast.get_docstring(parse(room / "__init__.py")) or "").split())
    if room.name in ("cli", "sync"):  # their __init__.py is a module that people import
        return
    assert "Owns" in text and "Must not" in text and "Begin with" in text
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", text.partition("Begin with")[2])
    assert len(named) >= 2 and all((room / name).exists() for name in named), named


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_do_not_need_each_other(package: str) -> None:
    """Imports at the top of a module, also those for the type checker: a reader follows them, too."""
    graph = {path: {target for target, _ in targets(path)} for path in modules(package)}
    done: set[Path] = set()
    while len(done) < len(graph):
        ready = {
            path
            for path, needs in graph.items()
            if path not in done and needs & graph.keys() <= done | {path}
        }
        assert ready, f"these import each other: {sorted(map(name_of, graph.keys() - done))}"
        done |= ready


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


#: Modules that may share their name: each package has its own, in its top folder; `config` also has the
#: core's, and each of the two state machines, Raft's core and the replicated state, is the `machine` of its
#: room.
SHARED_MODULES = {"config", "errors", "machine", "metrics"}
#: Rooms whose modules are named after something else: commands of the command line, and asyncio twins.
NAMED_AFTER_OTHERS = ("client/cli/", "client/sync/")
#: Errors of the client that stand for a refusal of the server, and have the name of the server's error.
SHARED_ERRORS = {
    "DiskFullError",
    "ConsumerGroupNotFoundError",
    "NotLeaderError",
    "RefusedError",
    "TooManyRequestsError",
    "TopicNotFoundError",
}


def test_no_two_modules_have_one_name() -> None:
    named: dict[str, list[str]] = {}
    for path in ALL:
        if not path.stem.startswith("__") and not name_of(path).startswith(NAMED_AFTER_OTHERS):
            named.setdefault(path.stem, []).append(name_of(path))
    shared = {name: paths for name, paths in named.items() if len(paths) > 1}
    assert shared.keys() == SHARED_MODULES, shared


def test_no_two_public_classes_have_one_name() -> None:
    """A synchronous class has the name of its asyncio twin."""
    named: dict[str, list[str]] = {}
    for path in ALL:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not name_of(path).startswith("client/sync/"):
                named.setdefault(node.name, []).append(name_of(path))
    shared = {name: paths for name, paths in named.items() if len(paths) > 1 and not name.startswith("_")}
    assert shared.keys() == SHARED_ERRORS, shared
    assert all("client/errors.py" in paths and len(paths) == 2 for paths in shared.values()), shared


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_public_module_has_a_docstring(path: Path) -> None:
    private = path.stem.startswith("_") and not path.stem.startswith("__")
    assert private or ast.get_docstring(parse(path)), f"{name_of(path)} does not say what it owns"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=name_of)
def test_every_folder_of_tests_is_a_package(path: Path) -> None:
    """Else `import raft` inside tests/raft would find the tests."""
    assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_modules_name_files_that_exist(package: str) -> None:
    """`file.py` is beside the module or in its package; with a folder it is below the package or the top."""
    lost = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", ast.get_docstring(parse(path)) or ""):
            places = [path.parent / name, ROOT / package / name, ROOT / name]
            if "/" not in name:
                places += (ROOT / package).rglob(name)
            if not any(place.exists() for place in places):
                lost.append(f"{name_of(path)}: {name}")
    assert not lost
