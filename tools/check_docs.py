"""Fails where the documents name a path, a command, a flag, a make target, or in a diagram a class, function or message
that does not exist, where a link leads nowhere, and where a document is not what a tool would make of it."""

import ast
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
_MADE = (make_reference.PATH.name, make_reference.FILES.name, make_faults.PATH.name)
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name not in _MADE),
)

_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PARTICIPANT = re.compile(r"participant (\w+) as (\w+)[^<\n]*<br/>([\w/]+\.py)")
_ARROW = re.compile(r"\w+ ?-?->> ?(\w+): (.*)")
_CALLED, _SENT = re.compile(r"(\w+)\(\)"), re.compile(r"\b[A-Z][a-z]\w+\b(?!\()")
_PATH = re.compile(r"(?:[A-Za-z_.][\w.\-]*/)+[\w.\-]*|[\w\-]+\.(?:py|toml|md|txt|cpp|h)")


def main() -> int:
    cli.load()
    broken = [f"{name}: {complaint}" for name in DOCUMENTS for complaint in check(ROOT / name)]
    for tool in (make_reference, make_faults):
        old = [path.name for path, text in tool.documents().items() if path.read_text() != text]
        broken += [f"{name} is old: python -m {tool.__name__}" for name in old]
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
    yield from _check_sequence(text)
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


def _check_sequence(text: str) -> Iterator[str]:
    """Checks participants (NAME<br/>FILE), functions f() that arrows call in their files, and messages of the wire."""
    wire = set[str]().union(*map(_names, (ROOT / "tpiedge" / "wire").glob("*.py")))
    participants = _PARTICIPANT.findall(text)
    known = {alias: _names(ROOT / "tpiedge" / file) for alias, _, file in participants}
    named = [(alias, name) for alias, name, _ in participants]
    named += [(alias, name) for alias, label in _ARROW.findall(text) for name in _CALLED.findall(label)]
    for alias, name in named:
        if name not in known.get(alias, ()):
            yield f"a diagram has {name} in the file of {alias}, which does not exist"
    for _, label in _ARROW.findall(text):
        yield from (
            f"a diagram sends {name} that tpiedge/wire has not" for name in {*_SENT.findall(label)} - wire
        )


def _names(path: Path) -> set[str]:
    """Returns the classes and functions of a file; an empty set without the file."""
    nodes = list(ast.walk(ast.parse(path.read_text() if path.is_file() else "")))
    return {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}


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
    if command.name == "install":  # what follows the verb of a service is that verb's
        known |= {flag for word in words if word in cli.commands for flag in _all_flags(cli.commands[word])}
    for flag in _flags(" ".join(words)):
        if flag not in known:
            yield f"`{line}`: tpiedge {command.name} has no flag {flag}"


if __name__ == "__main__":
    sys.exit(main())
