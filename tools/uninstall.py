"""Asks about the models, keys and settings that tpiedge keeps outside its checkout, before `make uninstall` removes
what is in it. Without a terminal it removes nothing and prints the commands."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Kept:
    """A folder that outlives the checkout, found as tpiedge finds it: by `variable`, by `base`, or below the home."""

    what: str
    variable: str
    base: str
    default: str

    def folder(self, environment: Mapping[str, str], home: Path) -> Path:
        given = environment.get(self.variable)
        return Path(given) if given else Path(environment.get(self.base) or home / self.default) / "tpiedge"


KEPT: Final = (
    Kept("models and shards", "TPIEDGE_CACHE", "XDG_CACHE_HOME", ".cache"),
    Kept("keys, tokens and members", "TPIEDGE_STATE", "XDG_STATE_HOME", ".local/state"),
    Kept("settings", "", "XDG_CONFIG_HOME", ".config"),
)


def size(folder: Path) -> str:
    """Returns the space that a folder takes on its disk, where sparse files take little."""
    found = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    count = sum(path.lstat().st_blocks * 512 for path in found)
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def ask_about(environment: Mapping[str, str], home: Path, ask: Callable[[str], str] | None) -> None:
    """Removes the folders that `ask` says yes to; prints the command for others. A folder that the user chose by a
    variable may hold more: it is never removed."""
    for kept in KEPT:
        folder = kept.folder(environment, home)
        if not folder.is_dir():
            continue
        words = f"{kept.what}, {size(folder)}, in {folder}"
        if (
            ask
            and not environment.get(kept.variable)
            and ask(f"uninstall: remove {words}? [y/N] ").lower() in ("y", "yes")
        ):
            shutil.rmtree(folder.resolve())
            if folder.is_symlink():
                folder.unlink()
            print(f"uninstall: removed {folder}")
        else:
            print(f"uninstall: {words} stay; to remove them: rm -r {shlex.quote(str(folder))}")


def main() -> int:
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    units = (settings / "systemd/user", Path("/etc/systemd/system"))
    if found := [unit for folder in units for unit in sorted(folder.glob("tpiedge*.service"))]:
        print(
            f"uninstall: {found[0]} runs tpiedge: tpiedge service uninstall, then make uninstall",
            file=sys.stderr,
        )
        return 1
    try:
        ask_about(os.environ, Path.home(), input if sys.stdin.isatty() else None)
    except (KeyboardInterrupt, EOFError):
        print("\nuninstall: stopped; make uninstall goes on", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"uninstall: cannot remove {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
