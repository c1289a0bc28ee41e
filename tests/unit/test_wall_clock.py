"""Nothing waits by the time of day, which jumps: only what is shown to people or expires by date looks at it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpiedge

ROOT = Path(tpiedge.__file__).parent
_OF_THE_DAY = ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today")
#: What for.
ALLOWED = {
    "api/completions.py": "the field `created`",
    "api/lookups.py": "the field `expires_at`",
    "api/ollama.py": "the field `created_at`",
    "cli/master_parts.py": "the number of the first epoch",
    "cli/models.py": "when a pack was last used",
    "local/served_models.py": "the field `created`",
    "cli/top.py": "which events are of today",
    "doctor/computer.py": "whether the clock is set",
    "doctor/network.py": "whether two clocks agree",
    "joining/registrar.py": "when a worker joined",
    "joining/pairing_link.py": "when a worker joined",
    "joining/tokens.py": "expiry of tokens",
    "kv/store.py": "when a page was last used",
    "launch/offer.py": "the age of a measurement",
    "master/reconciler.py": "when an event happened",
    "master/session.py": "when a step was recorded",
    "model/text_child.py": "the date in a prompt",
}


def looks(source: str) -> Iterator[str]:
    """Yields places where a module reads the time of day, or passes such a function on."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(_OF_THE_DAY):
            yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (name.name for name in node.names if f"time.{name.name}" in _OF_THE_DAY)


@pytest.mark.fault("P13", "only dates that are shown, and expiry, look at the time of day; no wait does")
def test_wall_clock_is_read_only_in_allowed_files() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(looks(path.read_text(encoding="utf-8")))
    }
    assert found == set(ALLOWED)


def test_wall_clock_reads_are_found() -> None:
    source = "import time\nfrom time import time_ns\ndeadline = time.time() + 1\nnow = datetime.now(UTC)\n"
    assert sorted(looks(source)) == ["datetime.now", "time.time", "time_ns"]
    assert list(looks("import time\ntime.monotonic()\n")) == []
