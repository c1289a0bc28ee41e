"""The process of the switch: `python -m tpiedge.lab.testbed.switch.process SOCKET`.

It reads one line, a SwitchPlan, makes the devices' interfaces and says `ready`, or `error: ...` and ends with status 1.
Then it forwards until SIGTERM or SIGINT, and does what it is asked on SOCKET (see control.py). The interfaces vanish
with it, however it ends.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.lab.testbed.switch.control import listening
from tpiedge.lab.testbed.switch.library import NativeSwitch
from tpiedge.lab.testbed.switch.plan import SwitchLink, SwitchPlan, changed_links, check_plan
from tpiedge.lab.testbed.switch.ports import offload_segmentation, open_port

_ENDS = (signal.SIGTERM, signal.SIGINT)


class Switch:
    """A context manager: the interfaces, and the thread that forwards between them.

    Raises UserError where the plan makes no sense, or cannot be followed here.
    """

    def __init__(self, plan: SwitchPlan) -> None:
        check_plan(plan)
        self._plan = plan
        self._links = {link.name: link for link in plan.links}
        self._stack = contextlib.ExitStack()
        self._taps: list[int] = []
        #: Why it ended by itself.
        self.error: TpiedgeError | None = None

    def __enter__(self) -> "Switch":
        with contextlib.ExitStack() as stack:
            self._taps = [stack.enter_context(_closing(open_port(port))) for port in self._plan.ports]
            self._allow_segmentation()
            self._native = NativeSwitch(self._plan, self._taps)
            stack.callback(self._native.close)
            thread = threading.Thread(target=self._run, name="switch")
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._native.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises UserError for what it does not understand, and then nothing has changed."""
        match request.get("do"):
            case "counters":
                return self._native.counters()
            case "set":
                self._set(changed_links(self._links, request.get("links")))
                return {}
        raise UserError("the request must have 'do': 'counters' or 'set'")

    def _run(self) -> None:
        try:
            self._native.run()
        except TpiedgeError as error:
            self.error = error
            os.kill(os.getpid(), signal.SIGTERM)

    def _set(self, changed: list[SwitchLink]) -> None:
        self._links |= {link.name: link for link in changed}
        self._allow_segmentation()
        for link in changed:
            self._native.change(link)

    def _allow_segmentation(self) -> None:
        """Where packets get lost, they must do so one by one."""
        links = tuple(self._links.values())
        for tap, port in zip(self._taps, self._plan.ports, strict=True):
            paths = self._plan.paths.get(port.device, {}).values()
            lossy = any(links[index].loss > 0 for path in paths for index in path)
            try:
                offload_segmentation(tap, port.segmentation and not lossy)
            except OSError as error:
                if error.errno != errno.EBADFD:  # the interface is gone, with its device: the others go on
                    raise


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """The exit status."""
    try:
        if len(arguments) != 1:
            raise UserError("the switch takes one argument, the path of its socket")
        plan = SwitchPlan.from_json(sys.stdin.readline())
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # also in the threads that start from here on
        with Switch(plan) as switch, listening(Path(arguments[0]), switch.answer):
            print("ready", flush=True)  # noqa: T201
            signal.sigwait(_ENDS)
        if switch.error is not None:
            raise switch.error
    except TpiedgeError as error:
        print(f"error: {' '.join(str(error).split())}", flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
