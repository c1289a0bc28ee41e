"""The JSON of a comparison on standard output, whole or as far as it came."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def printed(record: dict[str, Any], measured: list[dict[str, Any]]) -> Iterator[None]:
    """Print `record` when the block ends. Where it fails after something was `measured`, `record` has its "error"."""
    try:
        yield
    except BaseException as error:  # an interruption, too: minutes of measurements are not lost
        if measured:
            record["error"] = _words(error)
            print(json.dumps(record, indent=2), flush=True)
        raise
    print(json.dumps(record, indent=2))


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:
        return "ended by SIGTERM"
    return str(error) if isinstance(error, Exception) else type(error).__name__
