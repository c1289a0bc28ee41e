"""An imposter in a process of its own: nothing that the tests do keeps it from saying that it lives.

Run as a module it is that process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from tests.process.imposter.imposter import Imposter
from tests.process.imposter.violations import LIES, MISDEEDS, OF_AGENTS, OF_NODES, VIOLATIONS

_END_S = 30.0

Moment: TypeAlias = Literal["mischief", "on_survey", "on_agent", "on_control"]
"""As the attributes of Imposter."""
_ACTS: Final[Mapping[Moment, Mapping[str, Callable[..., None]]]] = {
    "mischief": {name: act for name, (act, _words) in VIOLATIONS.items()} | MISDEEDS,
    "on_survey": {name: act for name, (act, _words) in LIES.items()},
    "on_agent": OF_AGENTS,
    "on_control": OF_NODES,
}


class ImposterProcess:
    """It joins once it is started."""

    def __init__(self, token: str, pack: str, name: str = "mallory") -> None:
        """As Imposter."""
        self.name = name
        self._failure: str | None = None
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.process.imposter.imposter_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(token=token, pack=pack, name=name)
        self.peer: str = self._hear()["peer"]

    def _say(self, **what: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, "the imposter's process has ended"
        heard: dict[str, Any] = json.loads(line)
        self._failure = heard.get("failure")
        return heard

    def start(self) -> None:
        self._say(start=True)
        self._hear()

    def will(self, moment: Moment, act: str) -> None:
        """Once, from now on: what it does is one of those of `violations.py`."""
        self._say(moment=moment, act=act)
        self._hear()

    @property
    def failure(self) -> str | None:
        """Of the imposter itself, as of now or of its end."""
        if self._child.returncode is None:
            self._say()
            self._hear()
        return self._failure

    def close(self) -> None:
        """The end of its standard input is that of the process. Closing it twice does nothing more."""
        if self._child.returncode is not None:
            return
        with self._child:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._hear()
                assert self._child.wait(_END_S) == 0
            finally:
                self._child.kill()


def _answer(**what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201


def _obey(imposter: Imposter, order: dict[str, Any]) -> None:
    if order.get("start"):
        imposter.start()
    if "act" in order:
        moment: Moment = order["moment"]
        setattr(imposter, moment, _ACTS[moment][order["act"]])


def _main() -> None:
    imposter = Imposter(**json.loads(sys.stdin.readline()))
    _answer(peer=imposter.peer)
    for line in sys.stdin:
        _obey(imposter, json.loads(line))
        _answer(failure=imposter.failure and repr(imposter.failure))
    if imposter.started:
        imposter.close()
    _answer(failure=imposter.failure and repr(imposter.failure))


if __name__ == "__main__":
    _main()
