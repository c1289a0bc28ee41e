"""Record a terminal session as an animated SVG, which GitHub shows in a README.

    .venv/bin/python tools/record_terminal.py docs/terminal/session.toml docs/terminal/first-hour.svg --lines 27

    before = ["tpiedge pull org/name"]   commands that run unseen before the recording; $REPOSITORY is this one's folder
    [[steps]]
    type = "tpiedge run --model demo"    typed into a real bash, and Enter
    expect = "> "                        text left of the cursor at the step's end [default: the prompt "$ "]
    pause_s = 2                          how long nothing happens afterwards [default: 1]

Pauses are cut to 2 s. HOME and TPIEDGE_CACHE are temporary. A picture that names this computer or its folders, or is
larger than 300 kB, is not written.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.terminal_recording.picture import picture
from tools.terminal_recording.script import PROMPT, Script, load
from tools.terminal_recording.shell import Shell
from tools.terminal_recording.snapshots import Snapshot, shorten_pauses, thin
from tpiedge.errors import TpiedgeError, UserError

_INTERRUPTED = 130
_PER_SECOND = 12
_LONGEST_PAUSE_S = 2.0
_MOST_BYTES = 300_000
_LIMIT_S = 600.0  # for one command before the recording
_GREEN_PROMPT = rf"\[\e[32m\]{PROMPT}\[\e[0m\]"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        snapshots = record(load(options.script), options.columns, options.lines)
        write(picture(snapshots, options.columns), options.out)
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    print(f"{options.out}: {len(snapshots)} snapshots, {snapshots[-1].at_s:.1f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="TOML file of what is typed")
    parser.add_argument("out", type=Path, metavar="OUT", help="the SVG to write")
    parser.add_argument("--columns", type=int, default=88, help="of the terminal [default: 88]")
    parser.add_argument("--lines", type=int, default=24, help="of the terminal [default: 24]")
    return parser


def record(script: Script, columns: int, lines: int) -> list[Snapshot]:
    """Plays `script` and returns the screens, ready to be drawn. Takes as long as the session. Raises UserError.

    The commands before the recording have the recording's environment, and REPOSITORY.
    """
    repository = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = _environment(folder)
        _run_before(script.before, environment | {"REPOSITORY": str(repository)})
        with Shell(environment, folder, columns, lines) as shell:
            shell.begin()
            for step in script.steps:
                shell.play(step)
        snapshots = shorten_pauses(thin(shell.snapshots, _PER_SECOND), _LONGEST_PAUSE_S)
        _check_discretion(snapshots, [name, f"{Path.home()}/", str(repository)])
    return snapshots


def _environment(folder: Path) -> dict[str, str]:
    """Returns a command's whole environment, without that of this process."""
    return {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "PS1": _GREEN_PROMPT,
        "TERM": "xterm-256color",
        "TPIEDGE_CACHE": str(folder / "cache"),
    }


def _run_before(commands: Iterable[str], environment: dict[str, str]) -> None:
    for command in commands:
        ended = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if ended.returncode:
            raise UserError(f"{command!r} before the recording failed: {ended.stderr.strip()}")


def _check_discretion(snapshots: Iterable[Snapshot], paths: Iterable[str]) -> None:
    lines = {line for one in snapshots for line in one.lines}
    shown = "\n".join("".join(span.text for span in line) for line in lines)
    for private in (*paths, socket.gethostname()):
        if private in shown:
            raise UserError(f"{private!r}, which is this computer's own, can be read in the recording")


def write(svg: str, path: Path) -> None:
    data = svg.encode()
    if len(data) > _MOST_BYTES:
        raise UserError(f"the picture has {len(data)} bytes, more than {_MOST_BYTES}: shorten the script")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
