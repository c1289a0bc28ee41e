"""Requests of /v1/embeddings: every field is checked before any work is done for it."""

from dataclasses import replace
from typing import Final, cast

from tpiedge.api.asked import (
    Asked,
    Choice,
    FormatName,
    Reply,
    answer_limit,
    check_model,
    named_choices,
    read_token_ids,
    request_of,
)
from tpiedge.api.encoding import check_characters, encode
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import Pooling, Sampling

MAX_INPUTS: Final = 2048
"""That one request may have: as many as OpenAI's."""
_FORMS: Final[dict[str, FormatName]] = {"float": "embeddings", "base64": "embeddings-base64"}
_POOLINGS: Final = ("mean", "last")
_IGNORED: Final = ("user",)


def read_embeddings(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    encoding = fields.text("encoding_format") or "float"
    if encoding not in _FORMS:
        raise refused("'encoding_format' must be 'float' or 'base64'", "encoding_format")
    pooling = read_pooling(fields, service)
    check_dimensions(fields, service)
    given = fields.raw("input")
    fields.ignore(_IGNORED)
    fields.overlook()
    # As a stream, each part of which is an embedding: the whole of many would take much memory.
    reply = Reply(_FORMS[encoding], True, False, None, (), False)
    choices = embedding_choices(embedding_inputs(given, fields), service, pooling, name)
    return Asked(choices, reply, fields.ignored)


def read_pooling(fields: BodyFields, service: Service) -> Pooling:
    """Reads the pooling that the request names, or else the model. Raises ApiError."""
    wanted = fields.text("pooling")
    pooling = wanted or service.model().pooling
    if pooling in _POOLINGS:
        return cast(Pooling, pooling)
    if wanted:
        raise refused("'pooling' must be 'mean' or 'last'", "pooling")
    raise refused(
        f"the model's files say that embeddings are pooled by {sanitised_line(pooling, 60)}, which is not supported: "
        "give 'pooling', which may be 'mean' or 'last'",
        "pooling",
    )


def check_dimensions(fields: BodyFields, service: Service) -> None:
    """Raises ApiError where not all dimensions are wanted: the first ones alone mean something only in models that were
    trained for it."""
    width = service.model().width
    wanted = fields.integer("dimensions", None, 1, 2**31)
    if wanted is not None and wanted != width:
        raise refused(
            f"'dimensions' is {wanted}: embeddings of this model have {width}, and none fewer", "dimensions"
        )


def embedding_choices(
    inputs: list[object], service: Service, pooling: Pooling, name: str
) -> tuple[Choice, ...]:
    """One for each text or list of token ids. Raises ApiError."""
    choices = []
    for number, one in enumerate(inputs):
        ids = _ids(one, service)
        answer_limit("input", 0, len(ids), service)
        request = replace(request_of(ids, 0, Sampling(), service, ignore_eos=False), pooling=pooling)
        choices.append(Choice(request, number))
    return named_choices(choices, 1, name)


def embedding_inputs(given: object, fields: BodyFields) -> list[object]:
    """Of an `input`: one text or list of token ids each. Raises ApiError."""
    if given is None:
        raise refused("you must provide an 'input'", "input", "missing_required_parameter")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise fields.wrong_type("input", "a string, or an array of strings or token ids", given)
    if not given:
        raise refused("'input' is empty: give at least one text", "input")
    if type(given[0]) is int:
        return [given]
    if len(given) > MAX_INPUTS:
        raise refused(f"'input' has {len(given)} texts: at most {MAX_INPUTS}", "input")
    kinds = {type(one) for one in given}
    if kinds not in ({str}, {list}):
        raise refused("'input' must hold strings alone, token ids alone, or arrays of these", "input")
    return given


def _ids(one: object, service: Service) -> tuple[int, ...]:
    if isinstance(one, list):
        return read_token_ids(one, "input", service)
    text = str(one)
    check_characters("input", [text], service)
    return encode(text, service, "input", add_special=True)
