"""Requests of /v1/completions: every field is checked before any work is done for it."""

from dataclasses import replace
from typing import Final

from tpiedge.api import tables as t
from tpiedge.api.answer_fields import (
    ANSWERING,
    LIMIT,
    TOKEN_IDS,
    check_model,
    read_limit,
    read_reply,
    read_sampling,
)
from tpiedge.api.answer_grammar import FORM, read_grammar
from tpiedge.api.asked import (
    MAX_CHOICES,
    Asked,
    Choice,
    answer_limit,
    check_characters,
    encode,
    named_choices,
    read_token_ids,
    request_of,
)
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.model.tokenizer import unfinished

_TOKENS: Final = 16  # OpenAI's default
COMPLETION: Final = t.body(
    "model",
    "prompt",
    **ANSWERING,
    **FORM,
    prompt=t.any_of(
        t.TEXT,
        TOKEN_IDS,
        {**t.array(t.TEXT, most=MAX_CHOICES), "type": "array", "minItems": 1},
        {**t.array(TOKEN_IDS, most=MAX_CHOICES), "type": "array", "minItems": 1},
        description="A text, token ids, or a list of either, which is answered one by one.",
    ),
    echo=t.flag("Whether the answer begins with the prompt; its scores come with `logprobs`."),
    max_tokens={**LIMIT, "description": f"{LIMIT['description']} {_TOKENS} without."},
    logprobs=t.integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told, beside the drawn one."),
    suffix=t.unsupported(""),
    messages=t.unsupported(),
    best_of=t.integer(1, MAX_CHOICES, "The same as `n`."),
)


def read_completion(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, COMPLETION)
    check_model(fields, service)
    logprobs, maximum = fields.integer("logprobs"), read_limit(fields, "max_tokens", 0)
    reply = read_reply(fields, "completion", logprobs)
    sampling = read_sampling(fields, service, logprobs)
    count, echo = fields.integer("n") or 1, fields.flag("echo")
    if fields.integer("best_of") not in (None, count):
        raise refused("'best_of' is not supported", "best_of", "unsupported_parameter")
    grammar, param = read_grammar(fields, service)
    prompts = _prompts(fields)
    if count * len(prompts) > MAX_CHOICES:
        raise refused(
            f"{len(prompts)} prompts with {count} answers each: at most {MAX_CHOICES} in all", "prompt"
        )
    choices = []
    for number, prompt in enumerate(prompts):
        ids = _prompt_ids(prompt, service)
        limit = answer_limit("prompt", _TOKENS if maximum is None else maximum, len(ids), service)
        request = request_of(
            ids, limit, sampling, service, ignore_eos=fields.flag("ignore_eos"), grammar=grammar
        )
        scored = echo and logprobs is not None
        echoed = _echo(prompt, ids, service) if echo else None
        choices.append(Choice(replace(request, prompt_scores=scored), number, echoed))
    return Asked(
        named_choices(choices, count, name), replace(reply, grammar=param, goes_on=True), fields.ignored
    )


def _prompts(fields: BodyFields) -> list[str | list[object]]:
    """A text or a list of token ids each."""
    value = fields.raw("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        kind = str if isinstance(value[0], str) else list
        if not all(isinstance(one, kind) for one in value):
            raise refused("'prompt' mixes strings and arrays of token ids", "prompt")
        return value
    if not isinstance(value, str | list):
        raise fields.wrong_type("prompt", "a string, an array of token ids, or an array of either", value)
    return [value]


def _prompt_ids(prompt: str | list[object], service: Service) -> tuple[int, ...]:
    if isinstance(prompt, str):
        check_characters("prompt", [prompt], service)
        return encode(prompt, service, "prompt", add_special=True)
    return read_token_ids(prompt, "prompt", service)


def _echo(prompt: str | list[object], ids: tuple[int, ...], service: Service) -> EchoedPrompt:
    tokenizer, text = service.tokenizer, ""
    if isinstance(prompt, str):
        text = prompt
    elif tokenizer is not None:
        whole = ids[: len(ids) - unfinished(tokenizer, ids)]  # the answer has the rest of a character
        text = tokenizer.decode(whole, skip_special=False)
    return EchoedPrompt.of(text, ids, tokenizer)
