"""Flags for sampling, and for token ids."""

import secrets
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import click

from tpiedge.cli.options import Decorator, Parsed, is_default, option, together
from tpiedge.engine.sampling import TEMPERATURE, check_sampling
from tpiedge.errors import UserError
from tpiedge.wire.requests import Sampling

TOKEN_IDS = 1 << 32
_OF_MODELS: Mapping[str, tuple[type, str]] = {
    "temperature": (float, f"{TEMPERATURE.low:g} is greedy, {TEMPERATURE.high:g} the most random."),
    "top_k": (int, "Keep the K likeliest tokens; 0 keeps all."),
    "top_p": (float, "Keep the likeliest tokens up to probability P."),
    "min_p": (float, "Drop tokens below P times the likeliest."),
    "repetition_penalty": (float, ""),
}
_SEED = "The same seed gives the same answer.  [default: random]"


def _logit_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UserError(f"{text!r} is not a token id and a bias, like 123:-5") from None


def _sampling(name: str, kind: type, says: str = "") -> Decorator[Any]:
    default = getattr(Sampling(), name)
    shown = f"{default}; in a chat the model's own" if name in _OF_MODELS else default
    return click.option(_flag(name), type=kind, default=default, help=f"{says}  [default: {shown}]".strip())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


sampling_options = together(
    *(_sampling(name, *kind) for name, kind in _OF_MODELS.items()),
    _sampling("presence_penalty", float),
    _sampling("frequency_penalty", float),
    option(
        "--logit-bias",
        "Add BIAS to a token's logit; repeatable.",
        Parsed("ID:BIAS", _logit_bias),
        multiple=True,
    ),
    option("--seed", _SEED, int),
    _sampling("logprobs", int, "Report the K likeliest tokens (--json)."),
)
chat_sampling_options = together(
    *(
        option(_flag(name), f"{says}  [default: the model's]".strip(), kind)
        for name, (kind, says) in _OF_MODELS.items()
    ),
    option("--seed", _SEED, int),
)


def new_seed() -> int:
    return secrets.randbits(32)


def sampling_of(flags: dict[str, Any]) -> Sampling:
    """Removes the sampling flags from `flags` and returns their values. Raises UserError."""
    values = {field.name: flags.pop(field.name) for field in fields(Sampling)}
    if values["seed"] is None:
        values["seed"] = new_seed()
    sampling = Sampling(**values)
    check_sampling(sampling, TOKEN_IDS)
    return sampling


def with_usual(sampling: Sampling, usual: Sampling) -> Sampling:
    """Returns `sampling` with the values of `usual` where neither the command line nor settings give one."""
    return replace(sampling, **{name: getattr(usual, name) for name in _OF_MODELS if is_default(name)})


def token_ids(text: str) -> tuple[int, ...]:
    """Parses '1,2,3' as (1, 2, 3). Raises UserError."""
    try:
        ids = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise UserError(f"--prompt-ids {text[:60]!r} is not a list of token ids like 1,2,3") from None
    if any(not 0 <= token < TOKEN_IDS for token in ids):
        raise UserError(f"--prompt-ids {text[:60]!r} holds a number that cannot be a token id")
    return ids
