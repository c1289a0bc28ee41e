"""Flags that say how an answer's tokens are drawn and when it ends."""

import secrets
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from tpiedge.cli.options import Decorator, is_default, together
from tpiedge.engine.sampling import check_sampling
from tpiedge.errors import UserError
from tpiedge.wire.requests import Sampling

_TOKEN_IDS = 1 << 32
_GREEDY = Sampling()
_SEED_BITS = 32
_OF_MODELS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class Ending:
    """When an answer ends: after so many tokens (None: as usual), before any of these strings, at an end token.

    Checked when made.
    """

    max_tokens: int | None
    strings: tuple[str, ...]
    ignore_eos: bool

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens < _TOKEN_IDS:
            raise UserError(f"--max-tokens {self.max_tokens} is out of range: 1 to {_TOKEN_IDS - 1}")
        if "" in self.strings:
            raise UserError("--stop is empty: leave it out, or give some text")


class _LogitBias(click.ParamType[tuple[int, float]]):
    name = "ID:BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition(":")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id and a bias, like 123:-5", param, ctx)


def _option(name: str, kind: type, says: str | None = None) -> Decorator[Any]:
    default = getattr(_GREEDY, name)
    shown = f"{default}; in a chat the model's own" if name in _OF_MODELS else True
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, type=kind, default=default, show_default=shown, help=says)


sampling_options = together(
    _option("temperature", float, "0 is greedy."),
    _option("top_k", int, "Keep the K likeliest tokens; 0 keeps all."),
    _option("top_p", float, "Keep the likeliest mass P."),
    _option("min_p", float, "Drop tokens below P x the likeliest."),
    _option("repetition_penalty", float),
    _option("presence_penalty", float),
    _option("frequency_penalty", float),
    click.option(
        "--logit-bias", type=_LogitBias(), multiple=True, help="Add BIAS to a token's logit; repeatable."
    ),
    click.option("--seed", type=int, help="For the same answer again.  [default: another every time]"),
    _option("logprobs", int, "Report the K likeliest tokens (--json)."),
)


def new_seed() -> int:
    """A seed that nobody gave: short enough to be typed again."""
    return secrets.randbits(_SEED_BITS)


def sampling_of(flags: dict[str, Any]) -> Sampling:
    """Take the sampling flags out of `flags`. Raises UserError that names the flag.

    That --logit-bias stays within the vocabulary is still to be checked, once the model is known.
    """
    values = {field.name: flags.pop(field.name) for field in fields(Sampling)}
    if values["seed"] is None:
        values["seed"] = new_seed()
    sampling = Sampling(**values)
    check_sampling(sampling, _TOKEN_IDS)
    return sampling


def with_usual(sampling: Sampling, usual: Sampling) -> Sampling:
    """What neither the command line nor settings say of the running command's sampling is as usual for the model."""
    return replace(sampling, **{name: getattr(usual, name) for name in _OF_MODELS if is_default(name)})


def token_ids(text: str) -> tuple[int, ...]:
    """'1,2,3' -> (1, 2, 3). Raises UserError."""
    try:
        ids = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise UserError(f"--prompt-ids {text[:60]!r} is not a list of token ids like 1,2,3") from None
    if any(not 0 <= token < _TOKEN_IDS for token in ids):
        raise UserError(f"--prompt-ids {text[:60]!r} holds a number that cannot be a token id")
    return ids
