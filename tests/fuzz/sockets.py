"""Parsers of bytes from sockets and of text that people paste."""

import json
from pathlib import Path
from typing import Final

from tests.fuzz.forms import JSON, MESSAGEPACK
from tests.fuzz.parser import DEMO, MESSAGES, Parser, Read, words_of
from tpiedge.errors import ProtocolError


def _message(folder: Path) -> Read:
    from tpiedge.transport.endpoint import CONTROL, FILES, TENSOR, read_frame
    from tpiedge.wire.codec import decode, encode

    def read(data: bytes) -> None:
        refusal = None
        for plane in (CONTROL, TENSOR, FILES):
            try:
                read_frame("w-1", data, plane)
            except ProtocolError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        message = decode(data[:64] if data[:1] == b"\xc1" else data)
        assert decode(encode(message)) == message

    return read


def _message_seeds() -> list[bytes]:
    from tests.unit.wire.golden import MESSAGES
    from tpiedge.wire.codec import encode

    return [encode(message) for message in MESSAGES]


def _body(folder: Path) -> Read:
    from tests.fakes.service import FakeService
    from tests.http.conftest import InstantTemplate
    from tpiedge.api.body import parse_object
    from tpiedge.api.errors import ApiError
    from tpiedge.api.limits import Limits
    from tpiedge.api.openai import CHAT, COMPLETION
    from tpiedge.model.tokenizer import Tokenizer

    service = FakeService(Tokenizer.open(DEMO, here=True), InstantTemplate(), vocab_size=2048)
    limits = Limits.of_context(service.max_sequence)

    def read(data: bytes) -> None:
        try:
            values = parse_object(data, limits.body_values)
            (CHAT.parse if "messages" in values else COMPLETION.parse)(values, service)
        except ApiError as error:
            json.dumps(error.body()).encode()
            raise _Answered(json.dumps(error.message)) from None

    return read


class _Answered(Exception):
    """The client hears an error, as JSON: it need not be printable as it is."""


def _body_seeds() -> list[bytes]:
    chat = {"model": "babbler", "messages": MESSAGES, "max_tokens": 5, "temperature": 0.5, "stream": True,
            "stream_options": {"include_usage": True}, "stop": ["a", "b"], "logprobs": True, "top_logprobs": 2,
            "logit_bias": {"5": -1.5}, "seed": 7, "top_p": 0.9, "n": 1, "user": "me",
            "chat_template_kwargs": {"enable_thinking": False}, "response_format": {"type": "text"}}  # fmt: skip
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "x"}]
    completion = {"model": "babbler", "prompt": "Once upon", "max_tokens": 3, "logprobs": 2, "echo": False,
                  "frequency_penalty": 0.5, "presence_penalty": -0.5, "top_k": 5, "ignore_eos": True}  # fmt: skip
    bodies = (chat, chat | {"messages": parts}, completion, completion | {"prompt": [1, 2, 3], "stop": None})
    return [json.dumps(body).encode() for body in bodies]


def _join_token(folder: Path) -> Read:
    from tpiedge.joining.tokens import parse_token

    return lambda data: parse_token(data.decode("utf-8", "replace"))


def _join_token_seeds() -> list[bytes]:
    from tpiedge.host.addresses import parse_address
    from tpiedge.joining.tokens import JoinToken
    from tpiedge.transport.keys import key_text

    token = JoinToken(key_text(bytes(range(32))), "a" * 26, parse_address("192.0.2.1:7070"))
    return [token.text.encode()]


PARSERS: Final = (
    Parser("message", _message, _message_seeds, refuses=(ProtocolError,), form=MESSAGEPACK),
    Parser(
        "body", _body, _body_seeds, refuses=(_Answered,), form=JSON,
        words=words_of("role content text type image_url tool_calls tools suffix best_of logit_bias stop stream"),
    ),
    Parser("join-token", _join_token, _join_token_seeds, words=words_of("tpi1_ _ : 65536 [::1] a-b.example")),
)  # fmt: skip
