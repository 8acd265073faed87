"""What `python -m build` makes: a wheel and an sdist with all packages and nothing else, which run.

Needs the package index: for setuptools, which builds them, and for the dependencies of `ledgermq[server]`.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from .conftest import ROOT
from .processes import execute, output_of
from .test_up import up

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: Final = PROJECT["project"]["version"]
PACKAGES: Final = ("proto", "rpc", "raft", "broker", "nameserver", "client", "spark_jobs")
#: What a package consists of. `*_pb2*.py` are in the repository, so the compiler is not needed.
KINDS: Final = ("*.py", "*.pyi", "*.proto", "*.j2", "*.html", "py.typed")
DOCUMENTS: Final = ("README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path


def index_run(command: list[str], folder: Path) -> None:
    """Run what takes packages from the index, at the versions of constraints.txt."""
    pins = str(ROOT / "constraints.txt")
    settings = {"PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins, "PYTHONPATH": ""}
    done = execute(command, folder, timeout=600, **settings)
    if done.returncode:
        reason = "no packages from the package index. Is there a network, and is pip set up?"
        pytest.fail(f"{command[-1]}: {reason}\n{done.stderr[-1500:]}", pytrace=False)


def package_files() -> set[str]:
    """Return the files of all packages, as paths below the root folder."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for kind in KINDS
        for path in (ROOT / package).rglob(kind)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build both from a copy of the working tree in which an earlier build left its folder."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "fixtures"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, source)
    stale = source / "build" / "lib" / "ledgermq" / "client" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("raise AssertionError('of an earlier build')\n")
    index_run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return Distributions(wheel, sdist)


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(built: Distributions) -> None:
    assert built.wheel.name == f"ledgermq-{VERSION}-py3-none-any.whl"
    metadata = f"ledgermq-{VERSION}.dist-info/"
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    beside = {name for name in names if name.startswith(metadata)}
    assert {name.removeprefix("ledgermq/") for name in names - beside} == package_files()
    assert {f"{metadata}licenses/LICENSE", f"{metadata}licenses/NOTICE"} <= beside


def test_typed_packages_and_protocols_are_among_these_files() -> None:
    """Else the tests of contents would compare one omission with another."""
    found = package_files()
    assert {f"{package}/py.typed" for package in PACKAGES} <= found
    assert {f"proto/{name}.proto" for name in ("admin", "log", "nameserver", "raft", "rocketmq_v2")} <= found


def test_the_sdist_has_what_a_build_needs_and_no_tests(built: Distributions) -> None:
    assert built.sdist.name == f"ledgermq-{VERSION}.tar.gz"
    with tarfile.open(built.sdist) as sdist:
        names = {each.name.partition("/")[2] for each in sdist.getmembers() if each.isfile()}
    generated = {name for name in names if name.startswith("ledgermq.egg-info/")}
    made = {"PKG-INFO", "setup.cfg"}
    assert names - generated - made == package_files() | {"pyproject.toml", "MANIFEST.in", *DOCUMENTS}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_runs_a_cluster_where_nothing_else_is_installed(
    kind: str, built: Distributions, tmp_path: Path
) -> None:
    environment_folder, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment_folder, with_pip=True)
    programs = environment_folder / "bin"
    archive = built.wheel if kind == "wheel" else built.sdist
    index_run([str(programs / "python"), "-m", "pip", "install", "-q", f"{archive}[server]"], elsewhere)

    def run(*command: str) -> str:
        program = [str(programs / command[0]), *command[1:]]
        return output_of(program, elsewhere, timeout=120, PYTHONPATH="").strip()

    where = run("python", "-c", "import ledgermq.broker.node as node; print(node.__file__)")
    assert Path(where).is_relative_to(environment_folder)
    assert run("ledgermq", "--version").endswith(VERSION)
    with up(elsewhere / "data", command=[str(programs / "ledgermq")], folder=elsewhere) as (nameserver, _):
        run("ledgermq", "cluster", "status", "--wait", "60s", "-n", nameserver)
        run("ledgermq", "send", "orders", f"from the {kind}", "-n", nameserver)
        got = run(
            "ledgermq", "consume", "orders", "--group", "g", "--count", "1", "--timeout", "30",
            "-n", nameserver,
        )  # fmt: skip
        assert f"from the {kind}" in got
