"""Testbeds of tests: names that no other run uses, and what may be left of one."""

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.process.network.namespaces import why_impossible
from tpiedge.errors import TpiedgeError
from tpiedge.lab.testbed.isolation import NAMESPACES, Controllers, members_of
from tpiedge.lab.testbed.state import folder_of, prefix_of
from tpiedge.lab.testbed.switch_native import switch_library
from tpiedge.lab.testbed.testbed import down, switches

_numbers = itertools.count()


def why_no_testbed() -> str | None:
    if os.geteuid():
        return "root: a testbed needs it"
    if not Path("/dev/net/tun").exists():
        return "system: there is no /dev/net/tun, which the switch needs"
    if shutil.which("ip") is None:
        return "namespaces: iproute2 is not installed"
    try:
        switch_library()
    except TpiedgeError as error:
        return f"native: {error}"
    return why_impossible() or _why_no_groups()


def _why_no_groups() -> str | None:
    controllers, name = Controllers.here(), f"tpiedge-try-{os.getpid()}"
    try:
        controllers.make(name)
    except OSError as error:
        return f"groups: none can be made here: {error}"
    finally:
        controllers.remove(name)
    return None


def bed_name() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"


@contextmanager
def removed(name: str) -> Iterator[str]:
    try:
        yield name
    finally:
        down(name)


def left_of(name: str) -> list[str]:
    prefix = prefix_of(name)
    namespaces = sorted(NAMESPACES.glob(f"{prefix}*")) if NAMESPACES.is_dir() else []
    left = [f"namespace {path.name}" for path in namespaces]
    left += [f"process {pid} in a namespace" for pid in members_of(namespaces)]
    left += [f"control group {group}" for group in Controllers.here().found(prefix)]
    left += [f"switch {pid}" for pid in switches(name)]
    return left + ([str(folder_of(name))] if folder_of(name).exists() else [])


def written(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)
