"""Requests of /v1/completions: every field is checked before any work is done for it."""

from dataclasses import replace

from tpiedge.api.answer_grammar import read_grammar
from tpiedge.api.asked import (
    MAX_CHOICES,
    Asked,
    Choice,
    answer_limit,
    check_model,
    named_choices,
    read_limit,
    read_reply,
    read_token_ids,
    request_of,
    rest_of,
)
from tpiedge.api.encoding import check_characters, encode
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.prompt_echo import EchoedPrompt
from tpiedge.api.sampling import read_sampling
from tpiedge.api.service import Service
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.model.tokenizer import unfinished

_TOKENS = 16  # OpenAI's default


def read_completion(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    logprobs = fields.integer("logprobs", None, 0, MAX_LOGPROBS)
    reply = read_reply(fields, "completion", logprobs)
    maximum = read_limit(fields, "max_tokens", _TOKENS, 0)
    sampling = read_sampling(fields, service.vocab_size, logprobs, service.usual_sampling)
    count = fields.integer("n", 1, 1, MAX_CHOICES) or 1
    echo = fields.flag("echo")
    fields.unsupported(("suffix",), "")
    fields.unsupported(("messages",))
    fields.unsupported(("best_of",), count)
    grammar, param = read_grammar(fields, service)
    given = fields.raw("prompt")
    ignore_eos = rest_of(fields)
    prompts = _prompts(given, fields)
    if count * len(prompts) > MAX_CHOICES:
        raise refused(
            f"{len(prompts)} prompts with {count} answers each: at most {MAX_CHOICES} in all", "prompt"
        )
    choices = []
    for number, prompt in enumerate(prompts):
        ids = _prompt_ids(prompt, service)
        limit = answer_limit("prompt", maximum, len(ids), service)
        request = request_of(ids, limit, sampling, service, ignore_eos=ignore_eos, grammar=grammar)
        scored = echo and logprobs is not None
        echoed = _echo(prompt, ids, service) if echo else None
        choices.append(Choice(replace(request, prompt_scores=scored), number, echoed))
    return Asked(
        named_choices(choices, count, name), replace(reply, grammar=param, goes_on=True), fields.ignored
    )


def _prompts(value: object, fields: BodyFields) -> list[str | list[object]]:
    """A text or a list of token ids each."""
    if value is None:
        raise refused("you must provide a 'prompt'", "prompt", "missing_required_parameter")
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
