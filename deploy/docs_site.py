"""MkDocs hook (mkdocs.yml), run by `make docs`: adds to the site what is not in docs/.

* The reference pages of docs_reference.py.
* Files of the repository that a page links to (README.md, raw figures, examples), below `repository/`. Links
  into folders of the code become plain text, because the site does not show code. A link to a missing file
  stays, and MkDocs warns.
* Pages that mkdocs.yml does not name, in the navigation: a new page of docs/ appears without a change there.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a hook is loaded from its path, not as a module

from deploy import docs_reference  # noqa: E402

logger = logging.getLogger("mkdocs.hooks.docs_site")
#: Packages whose docstrings the site shows, and those that they are built on.
DOCUMENTED: Final = ("client", "proto")
#: Where files stand on the site that are outside docs/ in the repository.
OUTSIDE: Final = "repository/"
#: Linked from the navigation, or by no page of docs/.
DOCUMENTS: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "examples/README.md",
)
#: The section of the navigation that takes pages which mkdocs.yml does not name.
REST: Final = "Explanation"
#: A link (its text, its target), or code, in which there are none.
LINK: Final = re.compile(
    r"^ *```.*?^ *```|(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)|(?<!`)(`+)(?!`).+?(?<!`)\3(?!`)",
    re.MULTILINE | re.DOTALL,
)
#: What GitHub's Markdown takes for a list and Python-Markdown does not: one below a paragraph, one that is
#: indented by less than four columns. The first alternative is code, which stays.
LISTS: Final = re.compile(
    r"^ *```.*?^ *```|^(?P<text>[^\s*\-|#>`\d].*\n)(?=(?:[*-]|\d+\.) )|^ {2,3}(?=(?:[*-]|\d+\.) )",
    re.MULTILINE | re.DOTALL,
)
#: Of an element that a browser loads by itself, from elsewhere.
FOREIGN: Final = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"')


def on_startup(**_: object) -> None:
    """Give mkdocstrings the packages under their name, `ledgermq`: it does not follow links to folders."""
    for package in DOCUMENTED:
        copy = ROOT / "build" / "docs" / "ledgermq" / package
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT / package, copy, ignore=shutil.ignore_patterns("__pycache__", "*_pb2*"))
    for path, text in docs_reference.synchronous_clients().items():
        (ROOT / "build" / "docs" / "ledgermq" / path).write_text(text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages of docs/ that mkdocs.yml does not name under `REST`, those of a folder as a section."""
    nav: list[Any] = config.nav or []
    named = set(_paths(nav))
    sections: dict[str, list[Any]] = {}
    for path in sorted(Path(config.docs_dir).rglob("*.md")):
        name = path.relative_to(config.docs_dir).as_posix()
        if name not in named:
            sections.setdefault(posixpath.dirname(name), []).append(name)
    (rest,) = (entry[REST] for entry in nav if isinstance(entry, dict) and REST in entry)
    rest += sections.pop("", [])
    rest += [{folder.rpartition("/")[2].capitalize(): pages} for folder, pages in sections.items()]
    return config


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [path for entry in entries for path in _paths(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files of the repository that pages link to."""
    for name, text in docs_reference.pages().items():
        files.append(File.generated(config, name, content=text))
    waiting = [ROOT / name for name in DOCUMENTS]
    for file in files.documentation_pages():
        waiting += _targets(file.content_string, _home(file.src_uri))
    while waiting:
        path = waiting.pop()
        if not path.is_file() or path.is_relative_to(config.docs_dir) or not path.is_relative_to(ROOT):
            continue
        uri = OUTSIDE + path.relative_to(ROOT).as_posix()
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            if path.suffix == ".md":
                waiting += _targets(path.read_text(), path.relative_to(ROOT).parent)
    return files


def _home(src_uri: str) -> PurePosixPath:
    """Return the folder of the repository in which a page of the site stands."""
    outside = src_uri.startswith(OUTSIDE)
    return PurePosixPath(src_uri.removeprefix(OUTSIDE) if outside else f"docs/{src_uri}").parent


def _targets(text: str, home: PurePosixPath | Path) -> list[Path]:
    """Return the files that a page links to, as paths."""
    links = (target.partition("#")[0] for _, target, _ in LINK.findall(text))
    return [(ROOT / home / link).resolve() for link in links if link and ":" not in link]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs/ to where the site has them."""
    src_uri = page.file.src_uri
    home = ROOT / _home(src_uri)

    def put(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        link, hash_sign, anchor = (target or "").partition("#")
        if not link or ":" in link:
            return match[0]
        path = (home / link).resolve()
        if path.is_dir() and path.is_relative_to(ROOT):
            return text[1:-1]
        if not path.is_relative_to(ROOT) or not path.exists():
            return match[0]  # MkDocs knows it, or warns
        docs = Path(config.docs_dir)
        uri = path.relative_to(docs if path.is_relative_to(docs) else ROOT).as_posix()
        uri = uri if path.is_relative_to(docs) else OUTSIDE + uri
        return f"{text}({posixpath.relpath(uri, posixpath.dirname(src_uri) or '.')}{hash_sign}{anchor})"

    return LISTS.sub(_as_list, LINK.sub(put, markdown))


def _as_list(match: re.Match[str]) -> str:
    if match["text"]:
        return match["text"] + "\n"
    return match[0] if "`" in match[0] else "    "


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let nothing through that a reader's browser would fetch from another server."""
    for address in FOREIGN.findall(output):
        logger.warning("%s loads %s, which is not part of the site", page.file.src_uri, address)
    return output
