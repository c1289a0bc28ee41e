"""The fields that a request may have. Every refusal names the field at fault, before any work."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.service import FakeService
from tests.http.conftest import DEMO, InstantTemplate
from tests.unit.api.test_strange_requests import READERS, refusal_of
from tpiedge.api.body import MAX_DEPTH, parse_object
from tpiedge.api.errors import ApiError
from tpiedge.api.openai import CHAT, COMPLETION
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.fields import MAX_ANSWER_TOKENS

VOCABULARY = 2048
MOST_VALUES = 400_000


@pytest.fixture(scope="module")
def service():
    return FakeService(Tokenizer.open(DEMO, here=True), InstantTemplate(), vocab_size=VOCABULARY)


def completion(service, **fields):
    values = {"model": "babbler", "prompt": "hello"} | fields
    _, parsed = COMPLETION.parse(values, service)
    (choice,) = parsed.prompts
    return choice.request, parsed.reply


def chat(service, **fields):
    values = {"model": "babbler", "messages": [{"role": "user", "content": "hello"}]} | fields
    _, parsed = CHAT.parse(values, service)
    (choice,) = parsed.prompts
    return choice.request, parsed.reply


def ignored_fields(service, **fields):
    values = {"model": "babbler", "messages": [{"role": "user", "content": "hello"}]} | fields
    return CHAT.parse(values, service)[1].ignored


@pytest.mark.parametrize("ask", [completion, chat])
def test_max_tokens_is_capped_at_what_can_be_resumed(service, ask):
    roomy = FakeService(service.tokenizer, service.template, vocab_size=VOCABULARY)
    roomy.max_sequence = 10 * MAX_ANSWER_TOKENS
    assert ask(roomy, max_tokens=MAX_ANSWER_TOKENS)[0].max_tokens == MAX_ANSWER_TOKENS
    assert ask(roomy, max_tokens=MAX_ANSWER_TOKENS + 1)[0].max_tokens == MAX_ANSWER_TOKENS


def refuse(read, service, param, **fields):
    with pytest.raises(ApiError) as raised:
        read(service, **fields)
    error = raised.value
    assert error.param == param
    assert error.body()["error"]["message"]
    assert error.status == (404 if error.code == "model_not_found" else 400)
    return error


BIG = 10**400
#: The golden tables have each other field, and all that stands for it.
BOTH = [
    ("model", "other"),
    ("n", 129),
    ("max_tokens", BIG),
    ("temperature", BIG),
    ("stop", ["x"] * 100_000),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
    ("logit_bias", {"\N{SUPERSCRIPT TWO}": 1}),
    ("stream_options", {"include_usage": True}),
    ("max_tokns", 5),
]


@pytest.mark.parametrize(("param", "value"), BOTH, ids=lambda value: str(value)[:30])
@pytest.mark.fault("H3", "400 that names the parameter")
def test_completion_and_chat_refuse_bad_fields(service, param, value):
    refuse(completion, service, param, **{param: value})
    refuse(chat, service, param, **{param: value})


USER = {"role": "user", "content": "hi"}
REASONED = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
MESSAGE_FIELDS = ("messages[].refusal", "messages[].colour")


@pytest.mark.fault("H12", "the names of fields, which are logged, have no control character")
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ()),
        ({"user": "me", "num_ctx": 4096, "typical_p": 0.9}, ("user", "num_ctx", "typical_p")),
        ({"user": None, "metadata": {}}, ("metadata",)),
        ({"top_n": 3, "min_tokens": 2, "stop_token_ids": [1]}, ("top_n", "min_tokens", "stop_token_ids")),
        ({"messages": [USER, USER | {"refusal": "no", "colour": 1}, USER | {"colour": 2}]}, MESSAGE_FIELDS),
        ({"chat_template_kwargs": {"tone": 1}}, ("chat_template_kwargs.tone",)),
        ({"messages": [USER, REASONED]}, ()),
        ({"messages": [USER, REASONED], "continue_final_message": True}, ()),
        ({"a\r\nb: c\u00e9": 1}, ("a??b??c?",)),
        ({"x" * 1000: 1}, ("x" * 64,)),
        ({"": 1}, ("?",)),
        ({f"{number}_": 1 for number in range(200)}, tuple(f"{number}_" for number in range(32))),
    ],
    ids=lambda value: str(value)[:40],
)
def test_ignored_fields_are_reported(service, fields, names):
    assert ignored_fields(service, **fields) == names


def test_only_token_ids_are_accepted_without_a_tokenizer():
    bare = FakeService()
    request, _ = completion(bare, prompt=[5])
    assert request.prompt_ids == (5,)
    refuse(completion, bare, "prompt", prompt="text")
    refuse(chat, bare, "messages")


def test_json_value_count_is_limited():
    values = {"a": [1, "b", {"c": 2}]}  # an object, an array and an object, and two commas
    body = json.dumps(values).encode()
    assert parse_object(body, 5) == values
    with pytest.raises(ApiError, match="more than 4 values"):
        parse_object(body, 4)


@pytest.mark.parametrize("level", [(b"[", b"]"), (b'{"a":', b"}")], ids=ascii)
def test_nesting_has_a_limit(level):
    def nested(depth):
        return b'{"a":' + level[0] * (depth - 1) + b"0" + level[1] * (depth - 1) + b"}"

    assert parse_object(nested(MAX_DEPTH), MOST_VALUES)
    with pytest.raises(ApiError, match=f"nested too deeply: at most {MAX_DEPTH}"):
        parse_object(nested(MAX_DEPTH + 1), MOST_VALUES)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=100)
@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
@pytest.mark.fault("H2", "an object, or a refusal that says why")
def test_any_body_is_an_object_or_a_400(body):
    try:
        found, status = parse_object(body, MOST_VALUES), 400
    except ApiError as error:
        found, status = {}, error.status
    assert isinstance(found, dict)
    assert status == 400


@pytest.mark.parametrize("unit", ["once upon a time ", " ", "x", "\N{GRINNING FACE}", "Ärger\n\n"], ids=ascii)
def test_prompt_that_exactly_fits_is_accepted(unit):
    """Long texts are first counted in pieces: cutting them must not make them too long."""
    tokenizer = Tokenizer.open(DEMO, here=True)
    text = unit * (10_000 // len(unit))
    tokens = len(tokenizer.encode(text))
    exact = FakeService(tokenizer, InstantTemplate(), vocab_size=VOCABULARY, max_sequence=tokens + 1)
    request, _ = completion(exact, prompt=text, max_tokens=1)
    assert len(request.prompt_ids) == tokens
    short = FakeService(tokenizer, InstantTemplate(), vocab_size=VOCABULARY, max_sequence=tokens)
    error = refuse(completion, short, "prompt", prompt=text)
    assert error.code == "context_length_exceeded"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [BLOCK]}
SEEN = {"role": "user", "content": "hello", "images": ["AAAA"]}


@pytest.mark.parametrize(("path", "fields", "param"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [BLOCK]}]}, "messages[0].content[0].type"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].content[0].type"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ("/api/chat", {"messages": [SEEN]}, "messages[0].images"),
    ("/api/generate", {"prompt": "hello", "images": ["AAAA"]}, "images"),
])  # fmt: skip
def test_images_are_refused_in_words_in_every_api(service, path, fields, param):
    error = refusal_of(READERS[path], {"max_tokens": 1, **fields}, service)
    assert (error.status, error.param) == (400, param)
    assert "images are not supported" in error.message


def test_what_a_template_says_of_messages_is_one_line(service):
    template = ChatTemplate({"default": "{{ raise_exception('roles\\nmust alternate') }}"}, {})
    strict = FakeService(service.tokenizer, template, vocab_size=VOCABULARY)
    error = refuse(chat, strict, "messages")
    assert error.message == "the model's chat template failed: roles must alternate"
