"""Fails where the documents name a path, a command, a flag or a make target that does not exist, link to what is not
there, or where a document that a tool makes is not what the tool would write."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools import make_faults, make_reference
from tpiedge.cli.main import cli

ROOT = Path(__file__).parent.parent
_MADE = (make_reference.PATH.name, make_faults.PATH.name)
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name not in _MADE),
)

_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?:[A-Za-z_.][\w.\-]*/)+[\w.\-]*|[\w\-]+\.(?:py|toml|md|txt|cpp|h)")


def main() -> int:
    cli.load()
    broken = [f"{name}: {complaint}" for name in DOCUMENTS for complaint in check(ROOT / name)]
    for made in (make_reference, make_faults):
        if not made.is_current():
            broken.append(f"docs/{made.PATH.name} is old: python -m {made.__name__}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def check(document: Path) -> Iterator[str]:
    """Yields the faults of a document."""
    text = document.read_text()
    if "@@" in text:
        yield "something was to be filled in at @@"
    for link in _LINK.findall(text):
        if not (document.parent / link).exists():
            yield f"the link to {link} leads nowhere"
    commands = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    inline = _INLINE.findall(_FENCE.sub("", text))
    for code in [*commands, *inline]:
        line = code.strip().removeprefix("$ ").removeprefix(".venv/bin/")
        if line.startswith("tpiedge "):
            yield from _check_command(line)
        elif line.startswith("make "):
            yield from _check_target(line.split()[1])
        elif line.startswith("--"):
            yield from (
                f"`{flag}`: no verb has this flag" for flag in _flags(line) if flag not in _all_flags(cli)
            )
    for code in inline:
        if _PATH.fullmatch(code) and not _exists(code):
            yield f"`{code}` does not exist"


def _flags(line: str) -> list[str]:
    return [word.strip("[]").partition("=")[0] for word in line.split() if word.startswith(("--", "[--"))]


def _all_flags(command: click.Command) -> set[str]:
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        flags |= {flag for child in command.commands.values() for flag in _all_flags(child)}
    return flags


def _exists(path: str) -> bool:
    return any((base / path).exists() for base in (ROOT, ROOT / "tpiedge"))


def _check_target(target: str) -> Iterator[str]:
    if not re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        yield f"`make {target}`: the Makefile has no such target"


def _check_command(line: str) -> Iterator[str]:
    words = [word for word in shlex.split(line, comments=True)[1:] if word not in ("|", ">")]
    command: click.Command = cli
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        if found is None:
            yield f"`{line}`: there is no verb {words[0]!r}"
            return
        command, words = found, words[1:]
    if "--" in words:  # what follows is another program's
        words = words[: words.index("--")]
    known = _all_flags(command) | {"--help"}
    for flag in _flags(" ".join(words)):
        if flag not in known:
            yield f"`{line}`: tpiedge {command.name} has no flag {flag}"


if __name__ == "__main__":
    sys.exit(main())
