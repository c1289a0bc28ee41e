import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import test_batching
from tests.cluster.packs import packed, shares_of
from tests.cluster.test_batching import Arrival, Run
from tests.fakes.cluster import InProcessCluster
from tests.fakes.service import FakeService
from tpiedge.api.call_grammars import call_or_form_grammar
from tpiedge.api.tools import ParsedTools
from tpiedge.engine import constraints, grammars
from tpiedge.engine.step_cost import StepCost
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.model.call_reader import CallEnded
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.output import OutputForm, OutputParser
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.specs import Precision
from tpiedge.wire.control import Compiled, Failed, Finished, Token
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

DEMO_FOLDER = resolve_model(DEMO)
PERSON = Grammar(
    "json",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["a dog", "a cat with a long name"]},
                "age": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["name", "kind", "age"],
            "additionalProperties": False,
        }
    ),
)
"""Its keys and the second kind are forced."""
DIGITS = Grammar("regex", "[0-9]{3}-[0-9]{2}")
LARK = Grammar("lark", 'start: "yes" | "no" rest\nrest: ", because " /[a-z ]{1,20}/ "."')
GBNF = Grammar("lark", 'root ::= ("left" | "right") " turn"')


Demo = Callable[..., InProcessCluster]
Ask = Callable[..., GenerationRequest]
GREEDY = Sampling()
WARM = Sampling(temperature=1.2, seed=5, logprobs=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(DEMO_FOLDER, here=True)


@pytest.fixture(scope="module")
def demo_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(DEMO_FOLDER, Precision.Q8, tmp_path_factory.mktemp("packs") / "demo")


@pytest.fixture(scope="module")
def demo(demo_pack: Path) -> Demo:
    def make(nodes: int = 1, **settings: int) -> InProcessCluster:
        usual = {"capacity_tokens": 4096, "context_tokens": 1024}
        return InProcessCluster(
            demo_pack,
            shares_of(DEMO_FOLDER, ",".join("1" * nodes)),
            tokenizer=DEMO_FOLDER,
            **(usual | settings),
        )

    return make


@pytest.fixture
def ask(tokenizer: Tokenizer) -> Ask:
    def made(
        name: str, grammar: Grammar | None, most: int = 80, sampling: Sampling = GREEDY
    ) -> GenerationRequest:
        prompt = tuple(tokenizer.encode(f"Once upon a time {name} went home. "))
        stop = (tokenizer.eos_id or 0,)
        return GenerationRequest(name, prompt, most, sampling, stop, keep_prefix=True, grammar=grammar)

    return made


def text_of(run: Run, name: str, tokenizer: Tokenizer) -> str:
    return tokenizer.decode([token.token for token in run.tokens[name]])


def test_answers_match_their_grammars(demo: Demo, ask: Ask, tokenizer: Tokenizer) -> None:
    wanted = {"person": PERSON, "digits": DIGITS, "lark": LARK, "gbnf": GBNF}
    with demo(2, sequences=4, speculate=6) as cluster:
        arrivals = [Arrival(ask(name, one, sampling=WARM), 0) for name, one in wanted.items()]
        run = Run(cluster.leader, arrivals)
    texts = {name: text_of(run, name, tokenizer) for name in wanted}
    assert {name: run.finished[name].reason for name in wanted} == dict.fromkeys(wanted, "stop")
    assert set(json.loads(texts["person"])) == {"name", "kind", "age"}
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", texts["digits"])
    assert re.fullmatch("yes|no, because [a-z ]{1,20}[.]", texts["lark"])
    assert texts["gbnf"] in ("left turn", "right turn")


def test_model_is_forced_to_call_in_harmony_format(demo: Demo, ask: Ask, tokenizer: Tokenizer) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city}}
    tools = ParsedTools((tool,), ("weather",))
    service = FakeService(tokenizer, vocab_size=len(tokenizer.vocabulary))
    grammar = call_or_form_grammar(tools, "harmony", None, "tools", service.model())
    with demo(2) as cluster:
        run = Run(cluster.leader, [Arrival(ask("call", grammar, 200, sampling=WARM), 0)])
    parser = OutputParser(OutputForm("harmony", tools.read_as("harmony"), required=True))
    first = next(parser.feed_whole(text_of(run, "call", tokenizer), run.finished["call"].reason))
    assert isinstance(first, CallEnded)
    assert (first.name, first.broken) == ("weather", "")
    assert json.loads(first.arguments)["city"] in ("Paris", "Oslo")


def test_batching_changes_neither_constrained_nor_free_answers(demo: Demo, ask: Ask) -> None:
    free = ask("free", None, 40, Sampling(logprobs=5))
    bound = ask("bound", PERSON, sampling=WARM)
    with demo() as cluster:
        free_alone = Run(cluster.leader, [Arrival(free, 0)]).told("free")
        bound_alone = Run(cluster.leader, [Arrival(bound, 0)]).told("bound")
    with demo(2, sequences=3, speculate=6) as cluster:
        other = Arrival(ask("other", DIGITS), 3)
        run = Run(cluster.leader, [Arrival(free, 0), Arrival(bound, 1), other])
    assert run.told("free") == free_alone
    assert run.told("bound") == bound_alone


def test_constrained_answer_resumes_at_any_token(demo: Demo, ask: Ask) -> None:
    request = ask("one", PERSON, sampling=WARM)
    with demo() as cluster:
        whole = Run(cluster.leader, [Arrival(request, 0)]).told("one")
        for known in range(0, len(whole), 5):
            answer_ids = tuple(token for token, _ in whole[:known])
            rest = Run(cluster.leader, [Arrival(replace(request, answer_ids=answer_ids), 0)])
            assert rest.told("one") == whole[known:]


def test_grammar_forced_tokens_need_no_steps_of_their_own(
    demo: Demo, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "_LONE_S", 30.0)
    words = "the quick brown fox jumps over a lazy dog while we all wait for tea"
    grammar = Grammar("lark", f'start: ("A: {words}" | "B: {words}") "."')
    with demo(speculate=8) as cluster:
        for rows in (1, 2, 4, 8, 16) * 3:
            cluster.leader._batcher.cost.measured(rows, 1.0)
        monkeypatch.setattr(StepCost, "measured", lambda self, rows, seconds: None)
        run = Run(cluster.leader, [Arrival(ask("one", grammar), 0)])
    finished = run.finished["one"]
    assert finished.reason == "stop"
    assert finished.steps < finished.tokens / 3


DEEP_CHAIN = "start: r0\n" + "\n".join(f'r{i}: r{i + 1} | "x"' for i in range(3000)) + '\nr3000: "y"'
REFUSED = {
    "no JSON": (Grammar("json", "{"), "the grammar is refused: "),
    "no rule": (Grammar("lark", "root ::= other"), "the grammar is refused: .*'other' not found"),
    "too deep": (Grammar("json", '{"items":' * 4000 + "{}" + "}" * 4000), "the grammar is refused: "),
    "kills its process": (Grammar("lark", DEEP_CHAIN), "too much time or memory"),
    "too many ways": (Grammar("lark", "start: " + '"x"? ' * 5000), "the grammar is refused: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_grammar_does_not_affect_other_requests(demo: Demo, ask: Ask, case: str) -> None:
    grammar, why = REFUSED[case]
    ended: list[Failed] = []
    told: list[Token] = []
    with demo(2, sequences=3) as cluster:
        leader = cluster.leader
        leader.submit(ask("bad", grammar), lambda event: None)
        leader.submit(ask("good", DIGITS), lambda event: told.append(event))  # type: ignore[arg-type]
        while leader.preparing or not leader.idle:
            if leader.idle:
                leader.await_grammar(0.5)
            ended += [one for one in leader.step() if isinstance(one, Failed)]
        assert leader.pages[0] == 0
    (failed,) = ended
    assert (failed.request, failed.kind) == ("bad", "GrammarRefused")
    assert re.match(why if why.startswith("the") else f".*{why}", failed.message)
    assert "\n" not in failed.message
    assert len(told) >= 3


class Late:
    """Delays each mask until it was asked for `calls` times; None: forever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int | None) -> None:
        self._usual = grammars.Constraint.known
        self._calls = calls
        self._asked: dict[tuple[int, int], int] = {}
        monkeypatch.setattr(grammars.Constraint, "known", lambda constraint: self._known(constraint))
        for allowed in ("_PART", "_LEAST_S", "_LONE_S"):
            monkeypatch.setattr(constraints, allowed, 0.0)
        monkeypatch.setattr(test_batching, "GRAMMAR_S", 0.01)  # nothing may come that could be waited for

    def _known(self, constraint: grammars.Constraint) -> bool:
        at = id(constraint), len(constraint._accepted)
        self._asked[at] = self._asked.get(at, 0) + 1
        return self._calls is not None and self._asked[at] > self._calls and self._usual(constraint)


@pytest.mark.parametrize("calls", [1, 7])
def test_late_grammar_masks_do_not_change_answers(
    demo: Demo, ask: Ask, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    page = KVFormat("bf16", Checkpoint.open(DEMO_FOLDER).config.head_dim).page_positions
    requests = [ask("free", None, 40, Sampling(logprobs=5))]
    for name in ("one", "two"):
        request = ask(name, PERSON, 60, sampling=WARM)
        requests.append(replace(request, prompt_ids=(request.prompt_ids * page)[-page + 4 :]))
    with demo(capacity_tokens=2 * page, context_tokens=2 * page) as cluster:
        alone = [Run(cluster.leader, [Arrival(one, 0)]).told(one.id) for one in requests]
    Late(monkeypatch, calls)
    for pages in (4, 9):
        with demo(sequences=3, speculate=4, capacity_tokens=pages * page, context_tokens=2 * page) as cluster:
            run = Run(cluster.leader, [Arrival(one, 0) for one in requests])
        assert [run.told(one.id) for one in requests] == alone


@pytest.mark.parametrize("flood", [0, 15])
@pytest.mark.fault("H14", "grammars that are slow take no part in the steps: others have a token in each")
def test_missing_grammar_masks_do_not_delay_other_requests(
    demo: Demo, ask: Ask, monkeypatch: pytest.MonkeyPatch, flood: int
) -> None:
    Late(monkeypatch, None)
    told: list[Token] = []
    with demo(sequences=16) as cluster:
        leader = cluster.leader
        for number in range(flood):
            leader.submit(ask(f"slow-{number}", PERSON), lambda event: None)
        while len([live for live in leader._live.values() if live.sequence.undrawn]) < flood:
            leader.step()
        computed = cluster.computed
        leader.submit(ask("free", None, 30), lambda event: told.append(event))  # type: ignore[arg-type]
        prompt = len(ask("free", None).prompt_ids)
        leader.step()
        for tokens in range(len(told), 30):
            assert len(told) == tokens
            leader.step()
        assert leader.idle
        assert cluster.computed - computed <= prompt + 30
        for number in range(flood):
            leader.cancel(f"slow-{number}")
        assert len([one for one in leader.step() if isinstance(one, Finished)]) == flood
        assert leader.pages[0] == 0
        assert not leader.preparing


def test_grammar_compiles_before_its_request_is_submitted(demo: Demo, ask: Ask) -> None:
    heard: list[object] = []
    told: list[Token] = []
    with demo(sequences=1) as cluster:
        leader = cluster.leader
        for name in ("comes", "leaves"):
            leader.compile(ask(name, DIGITS), "group")
        leader.compile(ask("bad", REFUSED["no JSON"][0]), "")
        leader.submit(replace(ask("free", None, 900), ignore_eos=True), lambda event: None)
        while sum(isinstance(one, Compiled | Failed) for one in heard) < 3:
            leader.await_grammar(0.05)
            heard += leader.step()
        leader.cancel("leaves")
        leader.cancel("free")
        heard += leader.step()
        leader.submit(ask("comes", DIGITS), lambda event: told.append(event))  # type: ignore[arg-type]
        while leader.preparing or not leader.idle:
            heard += leader.step()
    compiled = [one.request for one in heard if isinstance(one, Compiled)]
    assert sorted(compiled) == ["comes", "leaves"]
    (failed,) = [one for one in heard if isinstance(one, Failed)]
    assert (failed.request, failed.kind) == ("bad", "GrammarRefused")
    ended = {one.request: one.reason for one in heard if isinstance(one, Finished)}
    assert (ended["leaves"], ended["comes"]) == ("cancel", "stop")
    assert len(told) >= 3


@pytest.fixture(autouse=True)
def _needs_llguidance() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
