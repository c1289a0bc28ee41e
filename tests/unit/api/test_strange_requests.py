import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.service import FakeService
from tests.http.conftest import DEMO, KnowingTemplate
from tpiedge.api.completions import ANSWER_FORMS
from tpiedge.api.errors import ApiError
from tpiedge.api.lookups import looked_up
from tpiedge.api.parsed import AnsweredAtOnce
from tpiedge.local.service import Service
from tpiedge.model.tokenizer import Tokenizer

CORPUS: Final = Path(__file__).parents[2] / "corpus"
READERS: Final[dict[str, Callable[[dict[str, object], Service], object]]] = {
    **{form.path: form.parse for form in ANSWER_FORMS.values()},
    "/v1/messages/count_tokens": partial(looked_up, "/v1/messages/count_tokens"),
}
JUNK: Final = st.sampled_from([
    None, True, False, 0, -1, 1.5, 10**30, "", "x", [], {}, [[]], [{}], [None], {"type": "x"}, [{"type": "text"}],
])  # fmt: skip


def bodies() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {path: {} for path in READERS}
    for path in CORPUS.glob("*.json"):
        for one in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            if one["path"] in READERS:
                found[one["path"]][json.dumps(one["body"], sort_keys=True)] = one["body"]
    return {path: list(some.values()) for path, some in found.items()}


BODIES: Final = bodies()


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*before, key)
        yield from places(one, (*before, key))


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService(Tokenizer.open(DEMO, here=True), KnowingTemplate(), vocab_size=2048)


@pytest.mark.fault("H3", "a request, or a refusal that names the parameter")
@pytest.mark.parametrize("path", list(READERS))
@given(data=st.data())
def test_request_with_junk_values_is_parsed_or_refused(
    path: str, service: FakeService, data: st.DataObject
) -> None:
    body = copy.deepcopy(data.draw(st.sampled_from(BODIES[path])))
    body["model"] = "babbler"
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(list(places(body))))
        holder = body
        for key in way[:-1]:
            holder = holder[key]
        holder[way[-1]] = copy.deepcopy(data.draw(JUNK))
    refusal = refusal_of(READERS[path], body, service)
    assert refusal is None or (400 <= refusal.status < 500 and refusal.message and refusal.param)


def refusal_of(read: Callable[..., object], body: dict[str, object], service: Service) -> ApiError | None:
    with suppress(AnsweredAtOnce):
        try:
            read(body, service)
        except ApiError as error:
            return error
    return None
