"""Importing a package changes nothing in the process; our own processes set gRPC up where they begin."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What our modules load that does change the process: no matter of ours, so it comes first.
NUMBERS = "numpy"
PLOTS = "matplotlib.pyplot"
SPARK = "pandas pyarrow pyspark.sql.datasource"

#: Imports modules one after another, and compares what a library has to leave alone.
COMPARE = """
import atexit, gc, importlib, logging, os, resource, signal, sys, threading, warnings

# The one handler that an import registers: without a client it does nothing, and handlers that an application
# registers afterwards run before it, so they can use its clients.
EXIT_HANDLER = ("ledgermq.client.sync.loop_thread", "_close_all")

changes = []
EVENTS = {
    "os.putenv", "os.unsetenv", "os.chdir", "os.fork", "subprocess.Popen", "socket.bind", "socket.connect",
}

def noted(register):
    def call(*arguments, **named):
        known = [(each.__module__, each.__name__) for each in arguments] == [EXIT_HANDLER]
        if sys._getframe(1).f_globals["__name__"].startswith("ledgermq") and not known:
            changes.append((register.__name__, arguments, named))
        return register(*arguments, **named)
    return call

def state():
    ours = sorted(name for name in logging.root.manager.loggerDict if name.startswith("ledgermq"))
    loggers = [logging.root, *map(logging.getLogger, ours)]
    return {
        "environment": dict(os.environ),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "loggers": [(each.name, each.level, each.handlers[:], each.filters[:]) for each in loggers
                    if each is logging.root or each.level or each.handlers or each.filters],
        "warnings": warnings.filters[:],
        "sys.path": sys.path[:],
        "threads": threading.enumerate(),
        "tasks": len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0,
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "interpreter": (sys.getswitchinterval(), sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold()),
        "limits": (resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)),
    }

others, ours = (each.split() for each in sys.argv[1:])
for name in others:
    importlib.import_module(name)
atexit.register, os.register_at_fork = noted(atexit.register), noted(os.register_at_fork)
sys.addaudithook(lambda event, arguments: changes.append((event, arguments)) if event in EVENTS else None)
before = state()
for name in ours:
    module, _, attribute = name.partition(":")
    module = importlib.import_module(module)
    attribute and getattr(module, attribute)
    after = state()
    changed = [what for what in before if after[what] != before[what]]
    assert not changed and not changes, f"importing {name} changes {changed} {changes}"
"""

#: Runs a module as `python -m` does, until gRPC is to be loaded, and prints what gRPC would read.
UNTIL_GRPC = """
import os, runpy, sys

class Watch:
    def find_spec(name, *_):
        if name == "grpc":
            print(os.environ.get("GRPC_VERBOSITY"), os.environ.get("GRPC_EXPERIMENTS"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def modules(package: str) -> list[str]:
    """Return the names of all modules of a package."""
    paths = sorted(path.relative_to(ROOT).with_suffix("") for path in (ROOT / package).rglob("*.py"))
    return [".".join(["ledgermq", *path.parts]).removesuffix(".__init__") for path in paths]


def run(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def compare(names: Sequence[str], others: str = NUMBERS) -> None:
    run(COMPARE, others, " ".join(names))


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("proto", NUMBERS),
        ("raft", NUMBERS),
        ("broker", NUMBERS),
        ("nameserver", NUMBERS),
        ("client", f"{NUMBERS} {PLOTS}"),
    ],
)
def test_importing_any_module_changes_nothing_in_the_process(package: str, others: str) -> None:
    compare(modules(package), others)


def test_importing_the_spark_jobs_changes_nothing_in_the_process() -> None:
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("the [spark] extra is not installed")
    compare(modules("spark_jobs"), f"{NUMBERS} {SPARK}")


def test_a_name_of_the_client_that_is_used_first_changes_nothing_in_the_process() -> None:
    from ledgermq import client

    compare([f"ledgermq.client:{name}" for name in client.__all__])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("os.environ['X'] = '1'; del os.environ['X']",
         "[] [('os.putenv', (b'X', b'1')), ('os.unsetenv', (b'X',))]"),
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "['signal handlers'] []"),
        ("logging.basicConfig()", "['loggers'] []"),
        ("warnings.simplefilter('ignore')", "['warnings'] []"),
        ("sys.path.append('/nowhere')", "['sys.path'] []"),
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "['threads', 'tasks'] []"),
        ("__name__ = 'ledgermq.x'; atexit.register(print)",
         "[] [('register', (<built-in function print>,), {})]"),
    ],
)  # fmt: skip
def test_a_module_that_does_change_the_process_is_found(line: str, found: str, tmp_path: Path) -> None:
    imports = "import atexit, logging, os, signal, sys, threading, time, warnings"
    (tmp_path / "guilty.py").write_text(f"{imports}\n{line}\n")
    with pytest.raises(AssertionError, match=re.escape(f"importing guilty changes {found}")):
        run(COMPARE, "", "guilty", PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
    ("module", "flags", "verbosity"),
    [
        ("ledgermq.broker", "--data {} --node n1 --peers n1=127.0.0.1:1", "ERROR"),
        ("ledgermq.nameserver", "--bind 127.0.0.1:0", "NONE"),
    ],
)
def test_a_broker_and_a_nameserver_load_grpc_with_their_settings_unless_the_environment_has_others(
    module: str, flags: str, verbosity: str, tmp_path: Path
) -> None:
    command = [module, *flags.format(tmp_path / "data").split()]
    assert run(UNTIL_GRPC, *command) == f"{verbosity} -event_engine_client,-event_engine_listener\n"
    assert run(UNTIL_GRPC, *command, GRPC_VERBOSITY="INFO", GRPC_EXPERIMENTS="") == "INFO \n"
