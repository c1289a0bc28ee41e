"""The JSON of a comparison on standard output, whole or as far as it came."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def printed(
    record: dict[str, Any],
    measured: list[dict[str, Any]],
    table: Callable[[dict[str, Any]], str] | None = None,
) -> Iterator[None]:
    """Print `record` when the block ends, as a `table` or as JSON. Where the block fails after something was
    `measured`, `record` has its "error"."""
    form = table or partial(json.dumps, indent=2)
    try:
        yield
    except BaseException as error:  # an interruption, too: minutes of measurements are not lost
        if measured:
            record["error"] = _words(error)
            print(form(record), flush=True)
        raise
    print(form(record))


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:
        return "ended by SIGTERM"
    return str(error) if isinstance(error, Exception) else type(error).__name__
