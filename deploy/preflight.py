"""Check for everything that LedgerMQ cannot install into its own folder.

    python3 deploy/preflight.py [--without-spark]

Runs before any download, in less than two seconds, on any Python 3 (therefore: old syntax, standard library
only).
Checks Python with venv, Java, memory and disk. Exit code 0, or 1 with one line and one command per missing
thing.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
MEMORY_MIN_GIB = 3.0  # five processes of at most 200 MiB, and a Spark driver with its Python workers
DISK_MIN_GIB = 6.0  # packages: 2 GiB during the build; logs and dumps of the demo: 1.5 GiB; the tests' data
DISK_MIN_INSTALLED_GIB = 4.0
DISK_MIN_WITHOUT_SPARK_GIB = 2.0
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

INSTALLERS = (  # the first one that exists is used; {python} and {java} are package names
    (
        "apt-get",
        "sudo apt-get update && sudo apt-get install -y ",
        "python3.11 python3.11-venv",
        "openjdk-17-jre-headless",
    ),
    ("dnf", "sudo dnf install -y ", "python3.11", "java-17-openjdk-headless"),
    ("zypper", "sudo zypper install -y ", "python311", "java-17-openjdk-headless"),
    ("pacman", "sudo pacman -S --noconfirm ", "python", "jre17-openjdk-headless"),
    ("apk", "sudo apk add ", "python3", "openjdk17-jre-headless"),
    ("brew", "brew install ", "python@3.11", "openjdk@17"),
)


def install_command(what):
    """Return the command of this system's package manager that installs "python" or "java"."""
    for tool, command, python, java in INSTALLERS:
        if shutil.which(tool):
            return command + (python if what == "python" else java)
    page = "https://www.python.org/downloads/" if what == "python" else "https://adoptium.net/"
    return "install it from " + page


def check_python():
    """Return what is wrong with the running Python, or None."""
    version = "%d.%d.%d" % sys.version_info[:3]
    if sys.version_info[:2] < PYTHON_MIN:
        reason = "Python %d.%d or newer is needed; %s is %s" % (PYTHON_MIN + (sys.executable, version))
        return reason, install_command("python") + "   (then: make PYTHON=python3.11 ...)"
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        package = "python%d.%d-venv" % sys.version_info[:2]
        command = (
            "sudo apt-get install -y " + package if shutil.which("apt-get") else install_command("python")
        )
        return "Python %s has no module %s" % (version, " and ".join(missing)), command
    return None


def check_java():
    """Return what is wrong with Java, on which Spark runs, or None."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        where = "JAVA_HOME=%s has no bin/java" % home if home else "there is no java on the PATH"
        return "Java %d or newer is needed for Spark; %s" % (JAVA_MIN, where), install_command("java")
    try:
        process = subprocess.Popen([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = process.communicate()[0].decode("utf-8", "replace")
    except OSError as error:
        return "Java cannot be started: %s" % error, install_command("java")
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return "%s -version answers without a version: %s" % (java, text.strip()[:200]), install_command(
            "java"
        )
    version = int(found.group(2) or 8) if found.group(1) == "1" else int(found.group(1))
    if version < JAVA_MIN:
        return "Java %d or newer is needed for Spark; %s is %d" % (JAVA_MIN, java, version), install_command(
            "java"
        )
    return None


def memory_gib():
    """Return the available memory in GiB; None if the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) / 1048576.0
    except (OSError, KeyError, ValueError):
        return None


def check_memory():
    """Return what is wrong with the memory, or None."""
    available = memory_gib()
    if available is not None and available < MEMORY_MIN_GIB:
        reason = "%.1f GiB of memory are available; %.0f GiB are needed (brokers and Spark)"
        return reason % (
            available,
            MEMORY_MIN_GIB,
        ), "close other programs; the largest: ps -eo rss,comm --sort=-rss | head"
    return None


def check_disk(with_spark):
    """Return what is wrong with the disk of this folder, or None."""
    free = shutil.disk_usage(ROOT).free / float(1 << 30)
    installed = os.path.exists(os.path.join(ROOT, ".venv", ".spark"))
    needed = DISK_MIN_INSTALLED_GIB if installed else DISK_MIN_GIB
    needed = needed if with_spark else DISK_MIN_WITHOUT_SPARK_GIB
    if free < needed:
        reason = "%.1f GiB are free on the disk of %s; %.0f GiB are needed"
        return reason % (
            free,
            ROOT,
            needed,
        ), "free some; what is large: du -xh -d 2 %s | sort -h | tail" % ROOT
    return None


def main():
    """Print everything that is missing. Returns the exit code."""
    with_spark = "--without-spark" not in sys.argv[1:]
    found = [check_python(), check_java() if with_spark else None, check_memory(), check_disk(with_spark)]
    problems = [problem for problem in found if problem]
    for reason, command in problems:
        sys.stderr.write("missing: %s\n         %s\n" % (reason, command))
    if problems:
        sys.stderr.write(
            "Nothing was downloaded or changed. Do the above, then run the same command again.\n"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
