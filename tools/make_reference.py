"""Writes what documents say of the code: docs/reference.md with every verb's `--help`, docs/files.md with every file,
and parts of other documents between `<!-- NAME: made by tools/make_reference.py -->` and `<!-- end -->`.

python -m tools.make_reference          # writes the files
python -m tools.make_reference --check  # status 1 if one is not current
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

import click

from tpiedge.cli.main import cli
from tpiedge.doctor.network import PORTS
from tpiedge.master.session import PHASES
from tpiedge.master.workers import TRANSITIONS
from tpiedge.model import families as model_families

ROOT: Final = Path(__file__).parent.parent
PATH: Final = ROOT / "docs" / "reference.md"
FILES: Final = ROOT / "docs" / "files.md"
_WIDTH: Final = 100
_SOURCES: Final = (".py", ".js", ".css", ".cpp", ".h", ".inl")
_HEAD: Final = """# Reference of the command

This page lists every verb with its flags, for users who know the verb and look for a flag.
`tools/make_reference.py` makes it from `tpiedge VERB --help`. Every flag can also be a variable or a key of a settings
file: [settings.md](settings.md).
"""
_FILES_HEAD: Final = """# Files

This page lists every file of `tpiedge/` with its first sentence; search it for a word of your task.
`tools/make_reference.py` makes it, in the order of the [packages](../ARCHITECTURE.md#packages).
[changing.md](changing.md) has tasks that touch several files.
"""
#: Who connects to whom, the port or its purpose, and what the link carries.
_LINKS: Final = (
    ("clients", "master", "HTTP", "requests, answers, the web page"),
    ("agents & nodes & rank0", "master", "control", "offers, orders, requests, tokens, heartbeats"),
    (
        "nodes",
        "rank0",
        "tensors",
        "step plans, hidden states, all-reduces, KV cache that moves to a new plan",
    ),
    ("nodes", "nodes", "any free port", "all-reduces by mesh or two-shot between workers"),
    ("agents", "master", "files", "weights"),
    ("agents", "master", "pairing", "the code of a worker that joins without a token"),
    ("new", "master", "installation", "HTTP: this installation as a wheel, and its sources"),
    ("agents", "master", "mDNS", "discovery: the address and port of a master with `--announce`"),
)
_PROCESSES: Final = """```mermaid
flowchart LR
    clients
    new[new machines]
    subgraph workers[each worker machine]
        agents[agent] -. starts .-> forks[fork server] -. forks .-> nodes[node]
    end
    subgraph machine[master machine]
        master -. starts .-> fork[fork server] -. forks .-> rank0[node of rank 0]
        master -. starts .-> children[packing and text processes]
        rank0 -. starts .-> grammars[grammar process]
    end"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="status 1 where a document is not what it would be"
    )
    checks, found = parser.parse_args().check, documents()
    if checks:
        return int(any(path.read_text() != text for path, text in found.items()))
    for path, text in found.items():
        path.write_text(text)
    return 0


def documents() -> dict[Path, str]:
    """Returns path -> text of each file. Raises ValueError as `diagrams`."""
    return {PATH: reference(), FILES: files(), **diagrams()}


def diagrams() -> dict[Path, str]:
    """Returns path -> text of each document with its diagrams. Raises ValueError as `filled` and `processes`."""
    states_of = {"worker states": states(TRANSITIONS), "session states": states(PHASES)}
    parts = {"ARCHITECTURE.md": {"processes": processes()}, "docs/failures.md": states_of}
    parts["docs/models.md"] = {"families": families()}
    return {ROOT / name: filled((ROOT / name).read_text(), parts[name]) for name in parts}


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Returns a document with these parts. Raises ValueError unless it has each part's markers once."""
    for name, part in parts.items():
        head = f"<!-- {name}: made by tools/make_reference.py -->\n"
        before, *after = text.split(head)
        if len(after) != 1 or "<!-- end -->" not in after[0]:
            raise ValueError(f"the document must have this line once: {head}")
        text = f"{before}{head}{part}\n{after[0][after[0].index('<!-- end -->') :]}"
    return text


def families() -> str:
    """Returns the table of the families of models: what their files say of themselves."""
    rows = []
    for module in iter_modules(model_families.__path__):
        found = import_module(f"{model_families.__name__}.{module.name}")
        if family := getattr(found, "FAMILY", None):
            types = ", ".join(f"`{name}`" for name in (family.model_type, *family.wrappers))
            title = (found.__doc__ or "").splitlines()[0].removesuffix(".")
            rows.append(f"| {title} | {types} | {f'`{family.gguf.architecture}`' if family.gguf else 'no'} |")
    return "\n".join(["| models | `model_type` | GGUF files |", "|---|---|---|", *rows, ""])


def processes() -> str:
    """Returns the diagram of processes and the table of links. Raises ValueError for a port without a link."""
    ports = {purpose: f"{port} {purpose}" for port, purpose in PORTS.items()}
    if unused := ports.keys() - {purpose for _, _, purpose, _ in _LINKS}:
        raise ValueError(f"no link uses {', '.join(sorted(unused))}")
    named = [(source, target, ports.get(port, port), what) for source, target, port, what in _LINKS]
    edges = [f'    {source} -- "{port}" --> {target}' for source, target, port, _ in named]
    rows = [f"| {port} | {what} |" for _, _, port, what in named]
    return "\n".join([_PROCESSES, *edges, "```", "", "| port | carries |", "|---|---|", *rows, ""])


def states(table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """Returns the diagram of state -> event -> (next state, actions), or of state -> next state -> event."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, moves in table.items():
        for event, move in moves.items():
            to, why = (move[0], event) if isinstance(move, tuple) else (event, move)
            if to != state:
                arrows.setdefault((state, to), []).append(why)
    lines = [f"    {state} --> {to}: {', '.join(whys)}" for (state, to), whys in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def files() -> str:
    """Returns the list of files. Raises ValueError for a file without a sentence."""
    lines, package = [_FILES_HEAD], ROOT / "tpiedge"
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("| package |")[2]
    for names, purpose in re.findall(r"^\| (`.*) \| (.*) \|$", table, re.MULTILINE):
        lines.append(
            f"## {names}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n| file | first sentence |\n|---|---|"
        )
        roots = [package / name for name in re.findall("`(.*?)`", names)]
        for path in sorted(one for root in roots for one in (root, *root.rglob("*"))):
            if path.suffix in _SOURCES and path.name != "__init__.py" and "vendor" not in path.parts:
                sentence = first_sentence(path.read_text(), path.name).replace("|", r"\|")
                lines.append(f"| `{path.relative_to(package)}` | {sentence} |")
        lines.append("")
    return "\n".join(lines)


def first_sentence(text: str, name: str) -> str:
    """Returns the first sentence of a file's docstring or first comment. Raises ValueError without one."""
    if name.endswith(".py"):
        told = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"(//.*\n)+|/\*.*\*/", text)
        told = re.sub("(?m)^//|[/*]{2}", "", comment[0]) if comment else ""
    words = " ".join(told.split("\n\n")[0].split())
    if not (sentence := re.match(r".*?\.(?= |$)|.*:$", words)):
        raise ValueError(f"{name} must begin with a sentence")
    return sentence[0]


def reference() -> str:
    cli.load()
    return "\n".join([_HEAD, *_sections(cli, ("tpiedge",))])


def _sections(group: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        words = (*path, name)
        yield f"## {' '.join(words)}\n\n```text\n{_help(command, words)}\n```\n"
        if isinstance(command, click.Group):
            yield from _sections(command, words)


def _help(command: click.Command, words: tuple[str, ...]) -> str:
    context = click.Context(
        command,
        info_name=" ".join(words),
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **cli.context_settings,
    )
    return re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE).strip()


if __name__ == "__main__":
    sys.exit(main())
