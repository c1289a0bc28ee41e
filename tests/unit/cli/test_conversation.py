import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpiedge.cli.conversation import ChatAnswer, ChatMessage, Conversation, Settings
from tpiedge.errors import ContextFull, PeerError, UserError


class Keys:
    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive

    def read(self) -> None:
        return None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        yield

    def keep_history(self, on: bool) -> str:
        return f"kept: {on}"


class Parrot:
    name = "parrot"
    chooses = True

    def __init__(self) -> None:
        self.settings: Settings = {}
        self.answer: str | BaseException = "hello"
        self.reason = "stop"
        self.s_per_token: float | None = None
        self.requests: list[tuple[list[ChatMessage], Settings]] = []

    def choose(self, name: str) -> None:
        raise UserError(f"this chat has no {name}")

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        self.requests.append((messages, dict(settings)))
        if isinstance(self.answer, BaseException):
            raise self.answer
        show(self.answer)
        return ChatAnswer(self.answer, self.reason, {"completion_tokens": 9}, s_per_token=self.s_per_token)


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def talk(parrot: Parrot) -> Conversation:
    return Conversation(parrot, Keys(interactive=True), None)


def said(messages: list[ChatMessage]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_earlier_turns_are_sent_with_the_next_message(talk: Conversation, parrot: Parrot) -> None:
    assert talk.handle("hi")
    assert talk.handle("two\nlines")
    assert said(parrot.requests[1][0]) == [("user", "hi"), ("assistant", "hello"), ("user", "two\nlines")]
    assert talk.handle("   ")
    assert len(parrot.requests) == 2


def test_help_has_model_only_where_a_master_has_several(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.handle("/help")
    several = capsys.readouterr().err.splitlines()
    parrot.chooses = False
    talk.handle("/help")
    one = capsys.readouterr().err.splitlines()
    assert [line for line in several if line not in one] == [next(x for x in several if "/model" in x)]


def test_clear_keeps_the_system_prompt(talk: Conversation, parrot: Parrot) -> None:
    talk.handle("/system be kind to all")
    talk.handle("hi")
    talk.handle("/clear")
    talk.handle("again")
    assert said(parrot.requests[1][0]) == [("system", "be kind to all"), ("user", "again")]
    talk.handle("/system")
    talk.handle("more")
    assert said(parrot.requests[2][0])[0] == ("user", "again")


def test_set_changes_the_next_answers(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.settings = {"max_tokens": 40, "temperature": 1.0}
    for line in ("/set temperature 0.5", "/set top-k 7", "/set seed 18446744073709551615"):
        talk.handle(line)
    assert "top_k 7, from the next answer on\n" in capsys.readouterr().err
    talk.handle("hi")
    assert parrot.requests[0][1] == {"temperature": 0.5, "top_k": 7, "seed": 2**64 - 1}
    talk.handle("/set")
    assert "max_tokens 40, temperature 0.5, top_k 7, seed 18446744073709551615" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set nonsense 1", "/set knows temperature, top_k"),
        ("/set top_k 1.5", "a whole number"),
        ("/set temperature hot", "needs a number"),
        ("/set temperature nan", "from 0.0 to 2.0"),
        ("/set max_tokens 0", "from 1 to"),
        ("/set stats", "needs on or off, like /set stats off"),
        ("/set history maybe", "needs on or off"),
        ("/model other", "this chat has no other"),
        ("/model", "talking to parrot"),
        ("/frobnicate", "no command /frobnicate: /help"),
        ("/save", "needs the name"),
        ("/save /nowhere/at/all", "cannot write /nowhere/at/all: No such file"),
        ("/save a\0b", "cannot write"),
    ],
)
def test_invalid_command_is_reported_and_changes_nothing(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert talk.handle(line)
    assert words in capsys.readouterr().err
    talk.handle("hi")
    assert parrot.requests == [([{"role": "user", "content": "hi"}], {})]


def test_save_writes_the_conversation_to_a_new_file(
    talk: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.handle("/system be kind")
    talk.handle("größe?")
    path = tmp_path / "chat.json"
    talk.handle(f"/save {path}")
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["model"] == "parrot"
    assert said(saved["messages"]) == [("system", "be kind"), ("user", "größe?"), ("assistant", "hello")]
    talk.handle(f"/save {path}")
    assert "exists already: give another name" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [PeerError("the master is gone"), KeyboardInterrupt()])
def test_a_message_without_an_answer_is_forgotten(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    parrot.answer = failure
    assert talk.handle("lost")
    told = capsys.readouterr()
    assert (str(failure) or "[stopped]") in told.err + told.out
    parrot.answer = "yes"
    talk.handle("again")
    assert said(parrot.requests[1][0]) == [("user", "again")]


def test_piped_conversation_ends_at_the_first_failure(parrot: Parrot) -> None:
    talk = Conversation(parrot, Keys(interactive=False), None)
    for failure in (PeerError("gone"), UserError("no"), KeyboardInterrupt()):
        parrot.answer = failure
        with pytest.raises(type(failure)):
            talk.handle("hi")
    parrot.answer = ContextFull("the conversation has 9 tokens")
    assert talk.handle("hi")  # /clear may follow


def test_answer_cut_by_max_tokens_is_reported(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.handle("hi")
    assert capsys.readouterr().err == ""
    parrot.reason = "length"
    talk.handle("hi")
    assert "/set max_tokens" in capsys.readouterr().err


def test_speed_follows_each_answer_until_stats_are_off(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.s_per_token = 0.08
    said = []
    for line in ("hi", "/set stats off", "hi", "/set stats on", "hi"):
        talk.handle(line)
        said.append(capsys.readouterr().err)
    speed = "[9 tokens, 12.5 tokens/s]\n"
    assert said == [speed, "stats off\n", "", "stats on\n", speed]
    Conversation(parrot, Keys(interactive=False), None).handle("hi")
    assert capsys.readouterr().err == ""


def test_set_without_a_value_returns_to_a_random_seed(
    talk: Conversation, parrot: Parrot, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("/set seed 7", "hi", "/set seed", "hi", "/set history off"):
        talk.handle(line)
    assert [settings for _, settings in parrot.requests] == [{"seed": 7}, {}]
    assert capsys.readouterr().err.endswith("seed as at the start\nkept: False\n")
