"""Measure LedgerMQ beside its peers: `python -m bench [options of bench.peers.run]`, or `make bench`.

Creates build/bench-venv with LedgerMQ and the peers' client libraries, detects which peers can run on this
machine, and runs the comparison with those. Peers on Java come from Maven as jars, into build/bench-jars.
Without any peer it measures LedgerMQ alone, and says what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "bench-venv"
INSTALL = (
    "apt-get install -y --no-install-recommends nats-server rabbitmq-server openjdk-17-jre-headless maven"
)
_ON_JAVA = ("kafka", "kafka-fsync", "rocketmq", "rocketmq-batch-push")
_ALL = 3 + len(_ON_JAVA)


def available() -> list[str]:
    """Return the systems that can be measured here."""
    systems = ["ledgermq"]
    if list(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")):
        systems.append("rabbitmq")
    if shutil.which("nats-server"):
        systems.append("nats")
    if shutil.which("java") and shutil.which("mvn"):
        systems += _ON_JAVA
    return systems


def prepare() -> Path:
    """Create the environment once. Returns its interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".installed"
    requirements = ROOT / "bench" / "peers" / "requirements.txt"
    wanted = requirements.read_text() + (ROOT / "constraints.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run(
            [*pip, "--editable", f"{ROOT}[server,bench]", "--requirement", str(requirements)], check=True
        )
        stamp.write_text(wanted)
    return python


def main() -> int:
    python = prepare()
    arguments = sys.argv[1:]
    systems = available()
    if len(systems) < _ALL:
        print(f"measuring {', '.join(systems)}; for the other peers: {INSTALL}", flush=True)
    if not any(argument.startswith("--systems") for argument in arguments):
        arguments = ["--systems", ",".join(systems), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [str(python), "-m", "bench.peers.run", *arguments], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
