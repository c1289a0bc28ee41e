"""What a request may say. Every refusal names the field at fault, before any work."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.api.body import MAX_DEPTH, parse_object
from tpiedge.api.chat_request import read_chat
from tpiedge.api.completion_request import read_completion
from tpiedge.api.errors import ApiError
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.testing.service import FakeService
from tpiedge.wire.limits import MAX_ANSWER_TOKENS
from tpiedge.wire.requests import GenerationRequest

DEMO = Path(__file__).parents[3] / "tpiedge" / "model" / "demo"
VOCABULARY = 2048
MOST_VALUES = 400_000


class InstantTemplate(ChatTemplate):
    """The rendering itself is tested elsewhere, and takes a process."""

    def __init__(self):
        super().__init__({}, {})

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        self.variables = variables
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@pytest.fixture(scope="module")
def service():
    return FakeService(Tokenizer.open(DEMO, here=True), InstantTemplate(), vocab_size=VOCABULARY)


def completion(service, **fields):
    values = {"model": "babbler", "prompt": "hello"} | fields
    asked = read_completion(values, service, "cmpl-1")
    (choice,) = asked.choices
    return choice.request, asked.reply


def chat(service, **fields):
    values = {"model": "babbler", "messages": [{"role": "user", "content": "hello"}]} | fields
    asked = read_chat(values, service, "chatcmpl-1")
    (choice,) = asked.choices
    return choice.request, asked.reply


def vain(service, **fields):
    """Names of the fields without an effect."""
    values = {"model": "babbler", "messages": [{"role": "user", "content": "hello"}]} | fields
    return read_chat(values, service, "chatcmpl-1").ignored


def test_a_plain_completion(service):
    request, reply = completion(service)
    assert request.id == "cmpl-1"
    assert request.prompt_ids == tuple(service.tokenizer.encode("hello"))
    assert request.max_tokens == 16
    assert request.stop_ids == service.eos_ids
    assert replace(request.sampling, seed=0) == service.usual_sampling
    assert not reply.stream
    assert reply.logprobs is None


@pytest.mark.parametrize("value", [-1, -1.0])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_minus_one_is_all_the_room(service, field, value):
    request, _ = chat(service, **{field: value})
    assert request.max_tokens == service.max_sequence - len(request.prompt_ids)
    if field == "max_tokens":
        request, _ = completion(service, max_tokens=value)
        assert request.max_tokens == service.max_sequence - len(request.prompt_ids)


def test_numbers_that_are_whole_may_be_written_as_floats(service):
    whole = {"max_tokens": 16, "n": 1, "seed": 3, "top_k": 40}
    floats = {name: float(value) for name, value in whole.items()}
    assert completion(service, **floats) == completion(service, **whole)
    assert chat(service, **floats, logprobs=True, top_logprobs=2.0) == chat(
        service, **whole, logprobs=True, top_logprobs=2
    )
    for value in (1.5, float("inf"), float("nan"), 1e300, True, "3"):
        refuse(completion, service, "max_tokens", max_tokens=value)


def test_a_plain_chat_may_use_the_whole_context(service):
    request, reply = chat(service)
    assert request.max_tokens == service.max_sequence - len(request.prompt_ids)
    assert reply.format == "chat"


@pytest.mark.parametrize("ask", [completion, chat])
@pytest.mark.parametrize("wanted", [600, 100_000, 2**32 - 1])
def test_an_answer_has_at_most_the_tokens_that_fit(service, ask, wanted):
    """As other servers do: the answer's finish_reason says that it was cut."""
    request, _ = ask(service, max_tokens=wanted)
    assert request.max_tokens == service.max_sequence - len(request.prompt_ids)
    fits = ask(service, max_tokens=request.max_tokens - 1)[0]
    assert fits.max_tokens == request.max_tokens - 1


@pytest.mark.parametrize("ask", [completion, chat])
def test_an_answer_has_at_most_the_tokens_with_which_it_can_go_on_after_a_loss(service, ask):
    roomy = FakeService(service.tokenizer, service.template, vocab_size=VOCABULARY)
    roomy.max_sequence = 10 * MAX_ANSWER_TOKENS
    assert ask(roomy, max_tokens=MAX_ANSWER_TOKENS)[0].max_tokens == MAX_ANSWER_TOKENS
    assert ask(roomy, max_tokens=MAX_ANSWER_TOKENS + 1)[0].max_tokens == MAX_ANSWER_TOKENS


@pytest.mark.parametrize("ask", [completion, chat])
def test_the_model_has_other_names(ask):
    """Of the master's machine: an alias, a pack's name, or the path of one, which nobody is told."""
    known = FakeService(Tokenizer.open(DEMO, here=True), InstantTemplate(), vocab_size=VOCABULARY)
    known.also_called, known.path = ("Babbler-q8",), "/packs/babbler"
    assert ask(known, model="Babbler-q8")
    assert ask(known, model="/packs/babbler")
    with pytest.raises(ApiError, match="'babbler' is") as raised:
        ask(known, model="Babbler-q4")
    assert raised.value.status == 404


def test_a_chats_answer_comes_to_an_end(service):
    """2048 tokens where nobody says."""
    roomy = FakeService(service.tokenizer, service.template, vocab_size=VOCABULARY)
    roomy.max_sequence = 100_000
    assert chat(roomy)[0].max_tokens == 2048
    assert chat(roomy, max_completion_tokens=5000)[0].max_tokens == 5000


def test_every_field_arrives(service):
    request, reply = completion(
        service,
        prompt=[3, 4],
        max_tokens=7,
        temperature=0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"5": -100, "6": 1.5},
        seed=-1,
        logprobs=3,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        ignore_eos=True,
        return_token_ids=True,
        user="someone",
    )
    assert request.prompt_ids == (3, 4)
    assert request.max_tokens == 7
    assert request.ignore_eos
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 5, 0.5, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        1.5,
        -2,
        2,
    )
    assert sampling.logit_bias == ((5, -100.0), (6, 1.5))
    assert sampling.seed == 2**64 - 1
    assert sampling.logprobs == 3
    assert reply.stops == ("a", "b")
    assert reply.stream
    assert reply.include_usage
    assert reply.token_ids


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [5, 6], [[5, 6]]])
def test_forms_of_a_prompt(service, prompt):
    request, _ = completion(service, prompt=prompt)
    assert request.prompt_ids == (
        (5, 6) if prompt not in ("hi", ["hi"]) else tuple(service.tokenizer.encode("hi"))
    )


def test_null_is_the_default(service):
    names = (
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "stop",
        "logprobs",
        "logit_bias",
        "seed",
        "stream",
        "echo",
    )
    request, _ = completion(service, **dict.fromkeys(names))
    assert request.max_tokens == 16


def test_parts_of_text_and_roles(service):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "eva"},
    ]
    request, _ = chat(service, messages=messages)
    expected = service.tokenizer.encode("<system>be brief<user>a\nb", add_special=False)
    assert request.prompt_ids == tuple(expected)


def test_only_switches_reach_the_template(service):
    chat(service, chat_template_kwargs={"enable_thinking": False})
    assert service.template.variables == {"enable_thinking": False}
    chat(service, chat_template_kwargs={"messages": [], "bos_token": "x"})
    assert service.template.variables == {}


def test_logprobs_of_a_chat(service):
    request, reply = chat(service, logprobs=True)
    assert (request.sampling.logprobs, reply.logprobs) == (1, 0)
    request, reply = chat(service, logprobs=True, top_logprobs=20)
    assert (request.sampling.logprobs, reply.logprobs) == (20, 20)


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
def test_refused_by_both(service, param, value):
    refuse(completion, service, param, **{param: value})
    refuse(chat, service, param, **{param: value})


@pytest.mark.parametrize(
    "prompt", [[BIG], [1] * 512, [1] * 10_000_000, "a" * 10_000_000], ids=lambda value: str(value)[:9]
)
def test_large_prompts_are_refused(service, prompt):
    refuse(completion, service, "prompt", prompt=prompt)
    if isinstance(prompt, str):
        refuse(chat, service, "messages", messages=[USER | {"content": prompt}])


USER = {"role": "user", "content": "hi"}
THOUGHT = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
MESSAGE_FIELDS = ("messages[].refusal", "messages[].colour")


def test_harmless_forms_are_taken(service):
    chat(
        service,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
    )
    answered = {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "annotations": []}
    chat(service, messages=[USER, answered, USER])
    completion(service, best_of=1, suffix="", echo=False)
    read_completion({"model": "babbler", "prompt": "x", "n": 3, "best_of": 3}, service, "cmpl-1")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [(5, 6)]),
        ([[5, 6]], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3])
def test_every_prompt_has_as_many_choices_as_are_wanted(service, prompt, prompts, count):
    values = {"model": "babbler", "prompt": prompt, "n": count, "seed": 2**64 - 2}
    asked = read_completion(values, service, "cmpl-1")
    ids = [tuple(service.tokenizer.encode(one)) if isinstance(one, str) else one for one in prompts]
    assert [choice.request.prompt_ids for choice in asked.choices] == [
        one for one in ids for _ in range(count)
    ]
    assert [choice.prompt for choice in asked.choices] == [
        one for one in range(len(prompts)) for _ in range(count)
    ]
    assert [choice.request.sampling.seed for choice in asked.choices] == [
        2**64 - 2,
        2**64 - 1,
        0,
    ][:count] * len(prompts)
    names = [choice.request.id for choice in asked.choices]
    assert len(set(names)) == len(names)
    assert all(name.startswith("cmpl-1") for name in names)


def test_the_choices_of_a_chat(service):
    values = {"model": "babbler", "messages": [USER], "n": 2, "seed": 7}
    first, second = read_chat(values, service, "chatcmpl-1").choices
    assert first.request.prompt_ids == second.request.prompt_ids
    assert [one.request.sampling.seed for one in (first, second)] == [7, 8]


@pytest.mark.parametrize("fields", [{"n": 128, "prompt": ["a", "b"]}, {"n": 65, "prompt": [[1], [2]]}])
def test_choices_are_only_so_many(service, fields):
    with pytest.raises(ApiError, match="at most 128 in all"):
        read_completion({"model": "babbler"} | fields, service, "cmpl-1")


@pytest.mark.parametrize(("logprobs", "scored"), [(None, False), (0, True), (5, True)])
def test_an_echo_is_scored_where_scores_are_wanted(service, logprobs, scored):
    values = {"model": "babbler", "prompt": "hello", "echo": True, "max_tokens": 0, "logprobs": logprobs}
    (choice,) = read_completion(values, service, "cmpl-1").choices
    assert choice.echo is not None
    assert choice.echo.text == "hello"
    assert len(choice.echo.offsets) == len(choice.request.prompt_ids)
    assert choice.request.max_tokens == 0
    assert choice.request.prompt_scores == scored


def test_the_echo_of_tokens_is_their_text(service):
    ids = service.tokenizer.encode("hello there")
    values = {"model": "babbler", "prompt": ids, "echo": True}
    (choice,) = read_completion(values, service, "cmpl-1").choices
    assert choice.echo.text == service.tokenizer.decode(ids, skip_special=False)


def test_a_prompt_may_fill_the_context_where_nothing_is_to_follow(service):
    prompt = [5] * service.max_sequence
    assert completion(service, prompt=prompt, max_tokens=0)[0].max_tokens == 0
    with pytest.raises(ApiError, match="maximum context length is 512 tokens"):
        completion(service, prompt=prompt, max_tokens=1)


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
        ({"messages": [USER, THOUGHT]}, ()),
        ({"messages": [USER, THOUGHT], "continue_final_message": True}, ()),
        ({"a\r\nb: c\u00e9": 1}, ("a??b??c?",)),
        ({"x" * 1000: 1}, ("x" * 64,)),
        ({"": 1}, ("?",)),
        ({f"{number}_": 1 for number in range(200)}, tuple(f"{number}_" for number in range(32))),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_without_an_effect_are_told(service, fields, names):
    assert vain(service, **fields) == names


def test_very_many_unknown_fields_are_refused_at_once(service):
    refuse(chat, service, "0_", **{f"{number}_": 1 for number in range(300_000)})


@pytest.mark.parametrize("read", [completion, chat])
def test_a_slip_of_the_pen_is_shown_with_what_is_meant(service, read):
    error = refuse(read, service, "max_tokns", max_tokns=5)
    assert error.body()["error"]["message"] == "'max_tokns' is not known: is 'max_tokens' meant?"


@pytest.mark.parametrize("silent", [{"content": None}, {}])
def test_an_assistant_may_have_said_nothing(service, silent):
    request, _ = chat(service, messages=[USER, {"role": "assistant", "refusal": None} | silent, USER])
    said, _ = chat(service, messages=[USER, {"role": "assistant", "content": ""}, USER])
    assert request.prompt_ids == said.prompt_ids


def test_without_a_tokenizer_only_token_ids():
    bare = FakeService()
    request, _ = completion(bare, prompt=[5])
    assert request.prompt_ids == (5,)
    refuse(completion, bare, "prompt", prompt="text")
    refuse(chat, bare, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": [' + b"[]," * 500_000 + b"[]]}",
        b"{}{}",
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
def test_bodies_that_are_refused(body):
    with pytest.raises(ApiError) as raised:
        parse_object(body, MOST_VALUES)
    assert raised.value.status == 400
    assert len(raised.value.message) < 200


@pytest.mark.parametrize(
    ("unit", "words"), [(b'\\"', "not JSON"), (b'"', "more than"), (b'","', "more than")], ids=ascii
)
def test_quotes_take_no_longer_than_their_number(unit, words):
    """Where every quote began a search to the end of the body, this would take hours."""
    with pytest.raises(ApiError, match=words):
        parse_object(b'{"' + unit * 1_000_000 + b"," * 2000, 1000)


def test_the_key_that_stands_twice_is_found_at_once():
    pairs = ",".join(f'"{number}":0' for number in range(100_000))
    with pytest.raises(ApiError, match="the key '99999' stands twice"):
        parse_object(f'{{{pairs},"99999":0}}'.encode(), MOST_VALUES)


def test_the_number_of_values_has_a_limit():
    values = {"a": [1, "b,[{", {"c": 2}]}  # an object, an array and an object, and two commas
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


def test_commas_within_a_text_are_no_values():
    text = ',[{"\\' * 200_000
    assert parse_object(json.dumps({"a": text}).encode(), 10) == {"a": text}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    (
        *("prompt", "messages", "logprobs", "echo", "tools", "stream_options", "logit_bias", "max_tokens"),
        *("stop", "n", "temperature", "top_p", "seed", "chat_template_kwargs", "response_format"),
        *("modalities", "metadata", "suffix"),
    )
)


def outcome(work):
    """(its result, None) or (None, its refusal); any other exception fails the test."""
    try:
        return work(), None
    except ApiError as error:
        return None, error


@settings(max_examples=150)
@given(fields=st.dictionaries(NAMES, VALUES, max_size=4), read=st.sampled_from([completion, chat]))
@pytest.mark.fault("H3", "a request, or a refusal that names the parameter")
def test_any_json_is_a_request_or_a_refusal_with_a_name(service, fields, read):
    request, error = outcome(lambda: read(service, **fields)[0])
    if error is not None:
        assert error.status == 400
        assert error.param
    else:
        assert isinstance(request, GenerationRequest)
        assert len(request.prompt_ids) + request.max_tokens <= service.max_sequence


@settings(max_examples=100)
@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
@pytest.mark.fault("H2", "an object, or a refusal that says why")
def test_any_bytes_are_an_object_or_a_refusal(body):
    found, error = outcome(lambda: parse_object(body, MOST_VALUES))
    assert isinstance(found, dict) if error is None else error.status == 400


@pytest.mark.parametrize("unit", ["once upon a time ", " ", "x", "\N{GRINNING FACE}", "Ärger\n\n"], ids=ascii)
def test_a_text_that_just_fits_is_taken_however_it_is_counted(unit):
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
