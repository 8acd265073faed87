"""Peers that run on Java: their jars, resolved by Maven into a cache, and the commands that start them.

No jar is part of the repository and no registry is named here: Maven's own settings decide where jars come
from. A machine without Java or Maven cannot measure these peers; `missing` says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Heap of each node, initial and maximum: three of them and their page cache share the memory of one machine.
HEAP = "768m"
_LEAST_JAVA = 17
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_MAVEN_S = 900  # a first download on a slow line
_INSTALL = "apt-get install -y --no-install-recommends openjdk-17-jre-headless maven"


class JarsError(RuntimeError):
    """Jars that Maven could not resolve."""


def missing() -> str:
    """Return what this machine lacks to run peers on Java, as a sentence; "" if nothing."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return f"{' and '.join(absent)} not found; install: {_INSTALL}"
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = java_version(answer)
    if version < _LEAST_JAVA:
        return f"Java {_LEAST_JAVA} or newer is needed, this is {version or 'unknown'}; install: {_INSTALL}"
    return ""


def java_version(answer: str) -> int:
    """Return the feature release of what `java -version` prints: 8 of "1.8.0_402"; 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else 0


def project(artifacts: Sequence[str]) -> str:
    """Return a Maven project that depends on `group:artifact:version` each."""
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\n".format(
            *artifact.split(":")
        )
        for artifact in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def resolve(cache: Path, name: str, artifacts: Sequence[str]) -> Path:
    """Return the folder with these artifacts and their runtime dependencies; a second call downloads nothing.

    Raises: JarsError.
    """
    folder, text = cache / name, project(artifacts)
    library, pom, complete = folder / "lib", folder / "pom.xml", folder / "complete"
    if complete.exists() and complete.read_text() == text:
        return library
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pom.write_text(text)
    command = ["mvn", "-B", "-f", str(pom), _PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={library}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsError(f"Maven did not resolve {', '.join(artifacts)}: {error}") from error
    if ended.returncode:
        errors = [line for line in ended.stdout.splitlines() if line.startswith("[ERROR]")]
        raise JarsError(
            f"Maven did not resolve {', '.join(artifacts)}; if it needs a mirror or a proxy, name it in "
            f"Maven's settings.xml. {errors[0] if errors else ended.stderr[-500:]}"
        )
    complete.write_text(text)
    return library


def command(
    library: Path, main_class: str, *arguments: str, heap: str = HEAP, properties: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs a class of a folder of jars with a fixed heap."""
    flags = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", *(f"-D{each}" for each in properties)]
    return ["java", *flags, "-cp", f"{library}/*", main_class, *arguments]
