"""Processes of other software that run beside a comparison: their end, and their last words."""

import os
import subprocess
from typing import IO

_END_S = 5.0
_KILLED_S = 30.0
_TAIL_BYTES = 500


def wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Return when it has ended: by itself within a few seconds, or else killed."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_KILLED_S)


def last_words(log: IO[bytes]) -> str:
    """The end of what it wrote, in one line."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return " ".join(log.read().decode(errors="replace").split()) or "it said nothing"
