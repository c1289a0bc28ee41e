"""The choices of a request that has many: AT_ONCE are asked for at a time, so that others have their turn.

Until then the others are counted with the requests that wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tpiedge.api.service import Busy, Generation, Service
from tpiedge.wire.requests import GenerationRequest

AT_ONCE: Final = 16
"""So many choices of one request are asked for at a time."""


class FurtherChoices:
    """Requests that the cluster is asked for one after the other, and knows to be postponed until then. For one thread
    at a time."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        submit: Callable[..., Generation],
        postpone: Callable[[int], None],
    ) -> None:
        """`submit` (of a request and `attended`) and `postpone`: those of Service for a client. Raises the latter's
        Busy."""
        self._requests = deque(requests)
        self._submit = submit
        self._postpone = postpone
        if requests:
            postpone(len(requests))

    @property
    def count(self) -> int:
        return len(self._requests)

    def submit(self, *, attended: bool = True) -> Generation:
        """The next one, which stays one of them where this raises as Service.submit."""
        generation = self._submit(self._requests[0], attended=attended)
        self._requests.popleft()
        self._postpone(-1)
        return generation

    def close(self) -> None:
        """Those that are left are not asked for. Idempotent."""
        if self._requests:
            self._postpone(-len(self._requests))
            self._requests.clear()


def submit_choices(
    requests: Sequence[GenerationRequest], service: Service, client: str
) -> tuple[list[Generation], FurtherChoices]:
    """Those of the first choices, as many as have places, and the others.

    Raises as Service.submit where not even one is taken."""
    submit = partial(service.submit, client=client)
    generations: list[Generation] = []
    try:
        _submit_first(requests, submit, generations)
        left = requests[len(generations) :]
        further = FurtherChoices(left, submit, partial(service.postpone, client=client))
    except Exception:
        for generation in generations:
            generation.cancel()
        raise
    return generations, further


def _submit_first(
    requests: Sequence[GenerationRequest],
    submit: Callable[[GenerationRequest], Generation],
    generations: list[Generation],
) -> None:
    for request in requests[:AT_ONCE]:
        try:
            generations.append(submit(request))
        except Busy:
            if not generations:
                raise
            return
