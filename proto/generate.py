"""Generate the Python code of every .proto file beside it: `python -m ledgermq.proto.generate [--check]`.

`--check` writes nothing and fails when the committed code differs from what the .proto files give. Code of a .proto
file that is gone counts as different, and is removed by generating.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def generate(out: Path) -> list[Path]:
    """Run protoc into `out`; return the generated files. Raises: SystemExit (with the reason)."""
    try:
        from grpc_tools import protoc  # a development dependency: the installed package does not need it
    except ImportError as error:
        raise SystemExit(
            "generating code needs grpcio-tools, which is not installed. Run: make setup"
        ) from error

    sources = sorted(f"ledgermq/proto/{path.name}" for path in HERE.glob("*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-Iledgermq/proto={HERE}", f"-I{include}"]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(arguments + sources) != 0:
        raise SystemExit("protoc failed; see its message above")
    return [path for path in sorted((out / "ledgermq" / "proto").iterdir()) if _is_wanted(path)]


def _is_wanted(path: Path) -> bool:
    """A file without a service has an empty _pb2_grpc.py: not kept."""
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
