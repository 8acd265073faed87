"""Generate the Python code of every .proto file here: `python -m ledgermq.proto.generate [--check]`.

`--check` writes nothing and fails if the committed code differs from what the .proto files give. Code whose
.proto file is gone counts as different; generating removes it.

The messages of RocketMQ's protocol are registered under a package name of our own. protobuf has one pool of
names per process, and the official Python client registers `apache.rocketmq.v2.Message` and the others there.
With equal names the library imported second would fail to load. Message names are not sent, so the bytes are
the same. Service names are sent as part of each call's path, so they stay as in the protocol.

Rejected: a `DescriptorPool` of our own. Its well-known types differ from the classes of `google.protobuf`, so
its messages refuse them, and protobuf's Python backend registers messages in the common pool anyway.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

#: The package as the protocol has it, and as the Python code registers it.
PACKAGE = "apache.rocketmq.v2"
OUR_PACKAGE = "ledgermq.rocketmq.v2"
#: `make setup` installs it. Its version is the oldest runtime that the code runs with (deploy/install.py).
COMPILER = HERE.parent / ".venv" / "protoc" / "bin" / "python"


def generate(out: Path) -> list[Path]:
    """Run protoc into `out`; return the generated files. Raises: SystemExit (with the reason)."""
    if not COMPILER.exists():
        raise SystemExit(f"generating code needs the compiler {COMPILER}, which is missing. Run: make setup")
    renamed = out / "renamed"
    renamed.mkdir()
    for path in HERE.glob("*.proto"):
        (renamed / path.name).write_text(path.read_text().replace(PACKAGE, OUR_PACKAGE))
    sources = sorted(f"ledgermq/proto/{path.name}" for path in HERE.glob("*.proto"))
    command = [str(COMPILER), "-m", "grpc_tools.protoc", f"-Iledgermq/proto={renamed}"]
    command += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if subprocess.run([*command, *sources], check=False).returncode != 0:
        raise SystemExit("protoc failed; see its message above")
    made = [path for path in sorted((out / "ledgermq" / "proto").iterdir()) if _is_wanted(path)]
    for path in made:
        if path.name.endswith("_pb2_grpc.py"):
            path.write_text(path.read_text().replace(OUR_PACKAGE, PACKAGE))
    return made


def _is_wanted(path: Path) -> bool:
    """Return whether to keep a file. Without a service, _pb2_grpc.py is empty and not kept."""
    return not path.name.endswith("_pb2_grpc.py") or "class " in path.read_text()


def main() -> int:
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        files = generate(Path(folder))
        left_over = {path.name for path in HERE.glob("*_pb2*.py*")} - {file.name for file in files}
        stale = [f.name for f in files if not _same(f, HERE / f.name)] + sorted(left_over)
        if not check:
            for file in files:
                shutil.copyfile(file, HERE / file.name)
            for name in left_over:
                (HERE / name).unlink()
    if check and stale:
        sys.stderr.write(f"generated code is stale: {', '.join(stale)}. Run: make proto\n")
        return 1
    return 0


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    raise SystemExit(main())
