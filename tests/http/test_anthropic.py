"""Messages as Anthropic's client gets them."""

import json

import anthropic
import httpx
import pytest

from tests.http.conftest import answers
from tpiedge.api.encoding import count_tokens
from tpiedge.api.limits import Limits
from tpiedge.errors import PeerLost
from tpiedge.model.template import ChatTemplate

ASKED = [{"role": "user", "content": "hi"}]
CALLED = {
    "role": "assistant",
    "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}],
}


@pytest.fixture
def claude(serve):
    server = serve(limits=Limits(ping_s=0.2))
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def prompt_of(service):
    """The text of the prompt that the cluster was asked to go on with."""
    request = service.generations.get(timeout=20).request
    return request, service.tokenizer.decode(request.prompt_ids, skip_special=False)


def test_a_message(claude, service):
    text = answers(service, "Once upon a time")
    found = claude.messages.create(model="babbler", max_tokens=32, messages=ASKED, system="Be brief.")
    assert [(block.type, block.text) for block in found.content] == [("text", text)]
    assert (found.type, found.role, found.model) == ("message", "assistant", "babbler")
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    request, prompt = prompt_of(service)
    assert prompt == "<system>Be brief.<user>hi"
    assert request.max_tokens == 32
    tokens = len(service.tokenizer.encode(text, add_special=False))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (len(request.prompt_ids), tokens)


def test_tokens_that_were_kept_count_apart(claude, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once", add_special=False))
        generation.finish("stop", cached=3)

    service.script = script
    usage = claude.messages.create(model="babbler", max_tokens=9, messages=ASKED).usage
    request, _ = prompt_of(service)
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len(request.prompt_ids) - 3, 3)


def test_where_nobody_knows_what_was_kept_nothing_is_said_of_it(claude, service):
    """At a stop string an answer ends before the cluster says so."""
    answers(service, "Once upon a time")
    usage = claude.messages.create(
        model="babbler", max_tokens=9, messages=ASKED, stop_sequences=["upon"]
    ).usage
    request, _ = prompt_of(service)
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len(request.prompt_ids), None)


def test_a_stream_has_their_events(claude, service):
    text = answers(service, "Once upon a time")
    with claude.messages.stream(model="babbler", max_tokens=32, messages=ASKED) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert found.content[0].text == text
    assert found.stop_reason == "end_turn"
    assert found.usage.output_tokens == len(service.tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize("stream", [False, True])
def test_why_an_answer_ends(claude, service, stream):
    def ending(text, reason, **more):
        def script(generation):
            generation.say(*service.tokenizer.encode(text, add_special=False))
            generation.finish(reason)

        service.script = script
        with claude.messages.stream(model="babbler", max_tokens=9, messages=ASKED, **more) as streamed:
            if stream:
                found = streamed.get_final_message()
        if not stream:
            found = claude.messages.create(model="babbler", max_tokens=9, messages=ASKED, **more)
        return found.stop_reason, found.stop_sequence, found.content[0].text

    assert ending("Once", "length")[:2] == ("max_tokens", None)
    found = ending("Once upon a time there", "stop", stop_sequences=["there", "time"])
    assert found == ("stop_sequence", "time", "Once upon a ")


def test_messages_of_blocks_are_a_chat(claude, service):
    answers(service, "x")
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    claude.messages.create(
        model="babbler",
        max_tokens=9,
        system=[{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "e"}]},
            {"role": "user", "content": "f"},
        ],
        metadata={"user_id": "me"},
        thinking={"type": "disabled"},
        extra_body={"temperature": 0.5, "top_k": 7, "top_p": 0.5},
    )  # fmt: skip
    request, prompt = prompt_of(service)
    assert prompt == "<system>A\nB<user>c\nd<assistant>e<user>f"
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 7)


def test_an_answer_goes_on_with_what_the_assistant_has_begun(claude, service):
    answers(service, " time")
    begun = {"role": "assistant", "content": "Once upon a"}
    claude.messages.create(model="babbler", max_tokens=9, messages=[*ASKED, begun])
    assert prompt_of(service)[1] == "<user>hi<assistant>Once upon a"


def test_a_begun_answer_may_have_thoughts(serve, service):
    answers(service, " time")
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    begun = {"role": "assistant", "content": [thought, {"type": "text", "text": "Once"}]}
    asked = {"model": "babbler", "max_tokens": 9, "messages": [*ASKED, begun]}
    answer = httpx.post(f"{serve().url}/v1/messages", json=asked, trust_env=False)
    assert answer.status_code == 200
    told = answer.headers["x-ignored-fields"]
    assert told == "messages[].content[].signature"
    assert prompt_of(service)[1] == "<user>hi<assistant>Once"


def test_that_a_tool_failed_is_told_to_nobody(serve, service):
    answers(service, "x")
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
    asked = {"model": "babbler", "max_tokens": 9, "messages": [{"role": "user", "content": [result]}]}
    answer = httpx.post(f"{serve().url}/v1/messages", json=asked, trust_env=False)
    assert answer.headers["x-ignored-fields"] == "messages[].content[].is_error"


def test_tokens_are_counted(claude, service):
    found = claude.messages.count_tokens(model="babbler", messages=ASKED, system="Be brief.")
    text = "<system>Be brief.<user>hi"
    assert found.input_tokens == len(service.tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize(
    "said",
    [
        "once upon a time " * 200,  # more than the context has
        "once upon a time " * 10_000,  # more characters than could fit, in several pieces
        "\n".join(["hi"] * 30_000),
        "x" * 70_000,  # no place to cut
    ],
)
def test_a_prompt_that_does_not_fit_is_counted(claude, service, said):
    """Claude Code shortens a conversation by this count."""
    found = claude.messages.count_tokens(model="babbler", messages=[{"role": "user", "content": said}])
    right = len(service.tokenizer.encode(f"<user>{said}", add_special=False))
    assert right > service.max_sequence
    assert abs(found.input_tokens - right) <= 8


def test_tools_count_where_a_prompt_does_not_fit(claude, service):
    messages = [{"role": "user", "content": "x" * 40_000}]
    tool = {"name": "look", "description": "sees " * 2000, "input_schema": {"type": "object"}}
    bare = claude.messages.count_tokens(model="babbler", messages=messages).input_tokens
    service.template = ChatTemplate({"default": "{{ tools }}<tool_call>"}, {})
    more = claude.messages.count_tokens(model="babbler", messages=messages, tools=[tool]).input_tokens
    assert more - bare >= len(service.tokenizer.encode("sees " * 2000, add_special=False))


def test_a_long_text_is_counted_by_its_beginning(service):
    said = "once upon a time " * 200_000
    assert count_tokens(said, service) == pytest.approx(
        200_000 * len(service.tokenizer.encode(" once upon a time", add_special=False)), rel=0.02
    )


def test_errors_are_their_client_s(claude, serve):
    with pytest.raises(anthropic.NotFoundError, match="is not served here"):
        claude.messages.create(model="other", max_tokens=9, messages=ASKED)
    server = serve(keys=("secret",))
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError, match="an API key is needed"),
    ):
        client.messages.create(model="babbler", max_tokens=9, messages=ASKED)
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
        assert client.messages.count_tokens(model="babbler", messages=ASKED).input_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_an_error_of_theirs(claude, service, stream):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once upon", add_special=False))
        generation.fail(PeerLost(1, "the work", "gone"))

    service.script = script
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        for _ in claude.messages.create(model="babbler", max_tokens=9, messages=ASKED, stream=stream):
            pass


def test_a_client_that_waits_hears_a_ping(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    asked = {"model": "babbler", "max_tokens": 9, "messages": ASKED, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/messages", json=asked, trust_env=False) as answer:
        lines = answer.iter_lines()
        assert "event: ping" in lines
        assert json.loads(next(lines).removeprefix("data: ")) == {"type": "ping"}
        service.generations.get(timeout=20).finish("stop")
        assert "event: message_stop" in lines
