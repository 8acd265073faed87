"""What is missing is told all at once, with commands, before anything is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .conftest import ROOT

SCRIPT = ROOT / "deploy" / "preflight.py"


def preflight(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, str(SCRIPT)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_that_runs_the_tests_passes() -> None:
    done = preflight()
    assert done.returncode == 0, done.stderr
    assert not done.stdout and not done.stderr


def test_a_missing_java_is_named_with_a_command() -> None:
    done = preflight(PATH="/nonexistent", JAVA_HOME="")
    assert done.returncode == 1
    assert "Java 17 or newer is needed" in done.stderr
    assert "install" in done.stderr
    assert "Nothing was downloaded or changed" in done.stderr


def test_an_old_java_is_named_with_its_version(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    done = preflight(JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert f"{java} is 8" in done.stderr


def test_everything_that_is_missing_is_told_at_once() -> None:
    """Memory and disk are too small for what the script asks for; Java is missing too."""
    script = (
        "import runpy, sys; module = runpy.run_path(sys.argv[1]); main = module['main'];"
        "main.__globals__.update(MEMORY_MIN_GIB=1e6, DISK_MIN_GIB=1e9, DISK_MIN_INSTALLED_GIB=1e9);"
        "main.__globals__.update(PYTHON_MIN=(4, 0));"
        "sys.exit(main())"
    )
    done = preflight("-c", script, PATH="/nonexistent", JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.count("missing: ") == 4, done.stderr


def test_the_script_runs_on_an_old_python() -> None:
    """Its syntax is that of Python 3.6, so that an old one can say that it is too old."""
    import ast

    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
