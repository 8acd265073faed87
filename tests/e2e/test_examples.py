"""Every example runs as it stands, against a cluster from `ledgermq up`, and checks what it claims."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT
from .processes import execute
from .test_up import up

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Run a cluster; give the addresses of the nameserver and of a messaging port."""
    data = tmp_path_factory.mktemp("examples") / "data"
    with up(data) as (nameserver, _):
        first = json.loads((data / "cluster.json").read_text())["nodes"]["n1"]
        yield nameserver, f"127.0.0.1:{first['messaging']}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_does_what_it_says(example: Path, addresses: tuple[str, str], tmp_path: Path) -> None:
    address = addresses[1] if "from rocketmq import" in example.read_text() else addresses[0]
    # The checks are assertions.
    done = execute([sys.executable, str(example), address], tmp_path, HOME=str(tmp_path), PYTHONOPTIMIZE="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.spark
@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_bodies_in_formats_of_other_modules_become_columns(
    name: str, addresses: tuple[str, str], tmp_path: Path
) -> None:
    """With Spark's own version of the module, else with the one before: packages of one release do not come
    to every mirror at the same time.
    """
    pyspark = pytest.importorskip("pyspark", reason="the [spark] extra is not installed")
    command = [sys.executable, str(ROOT / "examples" / "bodies_on_spark.py"), addresses[0], "--format", name]
    for version in (pyspark.__version__, "4.2.0"):
        done = execute([*command, "--modules-version", version], tmp_path, PYTHONOPTIMIZE="")
        if "unresolved dependency" in (done.stdout + done.stderr).lower():
            continue
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{name}: as they were sent" in done.stdout
        return
    pytest.skip(
        f"the module spark-{name} of Spark {pyspark.__version__} cannot be had from Maven Central here"
    )


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES]
