import pytest

from tests.unit.master.test_request_queue import Book, events, finished, token
from tpiedge.errors import Cancelled, ChildLost, GrammarRefused, InternalError
from tpiedge.master.journal import PendingAnswer
from tpiedge.wire.control import Compiled, Failed, Finished
from tpiedge.wire.requests import GenerationRequest, Grammar


class Compiler(Book):
    def __init__(self, parallel: int = 4, compiles: int = 2) -> None:
        super().__init__(limit=64, parallel=parallel, compiles=compiles)
        self.groups: dict[str, str] = {}

    def ask(self, name: str, client: str = "a", text: str | None = "") -> PendingAnswer:
        """Submits a request; its grammar is `text` (default: the name; None: no grammar)."""
        grammar = None if text is None else Grammar("regex", text or name)
        return self.requests.submit(GenerationRequest(name, (1, 2), 9, grammar=grammar), client)

    def prepare(self) -> list[str]:
        asked: list[str] = []

        def take(request: GenerationRequest, group: str) -> None:
            asked.append(request.id)
            self.groups[request.id] = group

        while self.requests.prepare(take):
            pass
        return asked

    def begin(self) -> list[str]:
        started: list[str] = []
        while (name := self.start()) is not None:
            started.append(name)
        return started

    def compiled(self, name: str, seconds: float = 0.0) -> None:
        self.requests.handle(Compiled(1, name, seconds))

    def left(self, name: str, seconds: float = 0.0) -> None:
        self.requests.handle(Finished(1, name, "cancel", 0, 0, 0, 0, seconds))


def test_request_with_a_compiling_grammar_takes_no_running_place() -> None:
    book = Compiler(parallel=1)
    book.ask("slow")
    assert book.begin() == []
    assert book.prepare() == ["slow"]
    assert book.prepare() == []
    book.ask("other", "b", None)
    assert book.begin() == ["other"]
    book.compiled("slow")
    assert book.begin() == []
    book.requests.handle(token("other"))
    book.requests.handle(finished("other", 1))
    assert book.begin() == ["slow"]


@pytest.mark.fault("H14", "other clients' requests begin as without them")
def test_grammar_flood_does_not_delay_other_clients() -> None:
    """Three requests for sixteen choices each leave the other client what it has without them."""
    begun: dict[bool, list[str]] = {}
    for flood in (False, True):
        book = Compiler(parallel=4, compiles=2)
        for number in range(48 if flood else 0):
            book.ask(f"flood-{number}", "flood")
        assert book.prepare() == (["flood-0"] if flood else [])
        for number in range(2):
            book.ask(f"free-{number}", "b", None)
        book.ask("bound", "b")
        assert book.prepare() == ["bound"]
        book.compiled("bound")
        begun[flood] = book.begin()
    assert begun[True] == begun[False] == ["free-0", "free-1", "bound"]


@pytest.mark.parametrize(
    ("kind", "error"), [("GrammarRefused", GrammarRefused), ("ChildLost", ChildLost), ("?", InternalError)]
)
def test_refused_grammar_fails_its_request_and_frees_its_place(kind: str, error: type[Exception]) -> None:
    book = Compiler()
    refused = book.ask("a-0", text="same")
    book.ask("a-1", text="same")
    assert book.prepare() == ["a-0"]
    book.requests.handle(Failed(1, 0, "a-0", kind, "no"))
    assert [type(said) for said in events(refused)] == [error]
    assert book.prepare() == ["a-1"]
    assert book.requests.waiting == 1


@pytest.mark.fault("H14", "no more are compiled at a time, however often clients leave")
def test_cancelled_compilation_counts_until_rank_0_ends_it() -> None:
    """Requests that are cancelled again and again make no more processes."""
    book = Compiler(compiles=1)
    first = book.ask("first")
    assert book.prepare() == ["first"]
    first.cancel()
    assert book.cancelled == ["first"]
    assert [type(said) for said in events(first)] == [Cancelled]
    book.ask("second")
    assert book.prepare() == []
    book.compiled("first")  # said before rank 0 heard of the cancellation
    assert book.prepare() == []
    book.left("first")
    assert book.prepare() == ["second"]
