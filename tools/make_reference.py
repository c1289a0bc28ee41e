"""Writes docs/reference.md: every verb of the command with its flags, as `--help` prints them.

python tools/make_reference.py          # writes the file
python tools/make_reference.py --check  # status 1 where it is not what it would be
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tpiedge.cli.main import cli

PATH = Path(__file__).parent.parent / "docs" / "reference.md"
_WIDTH = 100
_HEAD = """# Reference of the command

Made by `tools/make_reference.py` from `tpiedge VERB --help`. Every flag can also be a variable or a key of a settings
file: [settings.md](settings.md).
"""


def main() -> int:
    PATH.write_text(reference())
    return 0


def is_current() -> bool:
    return PATH.is_file() and PATH.read_text() == reference()


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
        command, info_name=" ".join(words), terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    return re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE).strip()


if __name__ == "__main__":
    sys.exit(main())
