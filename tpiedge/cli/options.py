"""Flags that several verbs share, and what they say together."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from tpiedge.engine.sampling import check_sampling
from tpiedge.errors import UserError
from tpiedge.pack.layout import Precision
from tpiedge.units import format_bytes, parse_bytes
from tpiedge.wire.fields import Compute, KVPrecision, Pin
from tpiedge.wire.requests import Sampling
from tpiedge.wire.weights import Keeping

_TOKEN_IDS = 1 << 32
_MAX_BLOCKS = 10_000
_MANY_DIGITS = 20
_TOO_LARGE = 1 << 63


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


_Command = TypeVar("_Command", bound=Callable[..., Any])
_Value = TypeVar("_Value")


def _digits(value: object) -> str:
    """A value as text. Of a settings file's number: one that is out of all ranges may be too long to write."""
    return str(max(-1, min(value, _TOO_LARGE)) if isinstance(value, int) else value)


class _Bytes(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(_digits(value))
        except UserError as error:
            self.fail(str(error), param, ctx)


BYTES = _Bytes()

_LEAST_MEMORY = 64_000_000
#: A number without a unit below it may be one of MB.
_MOST_MB = 1_000_000


class _Memory(_Bytes):
    """A machine's or a node's budget: what is too small for any node is a slip of the pen."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = _digits(value).strip()
        nbytes: int = super().convert(text, param, ctx)
        if text.isdecimal():
            meant = format_bytes(nbytes).replace(" ", "") if nbytes >= _LEAST_MEMORY else f"{text}MB"
            likely = nbytes >= _LEAST_MEMORY or 0 < nbytes < _MOST_MB
            advice = f"did you mean {meant}?" if likely else "write it like 4GB"
            self.fail(f"{text} has no unit: {advice}", param, ctx)
        if nbytes < _LEAST_MEMORY:
            self.fail(f"{text} is less than any node can work with: give 64MB or more", param, ctx)
        return nbytes


MEMORY = _Memory()


class _Window(click.ParamType[tuple[int, int]]):
    """(blocks, bytes), one of which is 0."""

    name = "BLOCKS|SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        text = _digits(value)
        if not text.isdecimal():
            return 0, BYTES.convert(text, param, ctx)
        blocks = int(text[:_MANY_DIGITS])
        if not 1 <= blocks <= _MAX_BLOCKS:
            found = text if len(text) <= _MANY_DIGITS else f"{text[:_MANY_DIGITS]}..."
            wanted = f"1 to {_MAX_BLOCKS}, or a size like 500MB"
            self.fail(f"{found} blocks are out of range: {wanted}", param, ctx)
        return blocks, 0


WINDOW = _Window()


def arithmetic_options(command: _Command) -> _Command:
    """--precision and --compute: see prepare.choose_arithmetics."""
    for option in reversed(_ARITHMETIC):
        command = option(command)
    return command


_ARITHMETIC = (
    click.option(
        "--precision",
        type=click.Choice([one.value for one in Precision]),
        help="Storage; q8 and q4 are quantised, 8 and 4 bits a weight.  [default: the checkpoint's]",
    ),
    click.option(
        "--compute",
        type=click.Choice(get_args(Compute)),
        help="Arithmetic.  [default: int8 for q8 and q4, else f32]",
    ),
)


kv_option = click.option(
    "--kv-precision",
    "kv",
    type=click.Choice(get_args(KVPrecision)),
    help="How keys and values are kept; q8 and q4 are quantised.  [default: f32 for f32 arithmetic, else bf16]",
)


def keeping_options(command: _Command) -> _Command:
    """--window, --pin and --io: see `keeping_of`."""
    for option in reversed(_KEEPING):
        command = option(command)
    return command


own_memory_option = click.option(
    "--memory",
    type=MEMORY,
    help="Of this machine's memory; weights that do not fit stream from disk.  [default: most of what is free]",
)

_KEEPING = (
    click.option(
        "--window",
        type=WINDOW,
        help="Memory that weights stream through: 4 (blocks) or 500MB.  [default: two blocks]",
    ),
    click.option(
        "--pin",
        type=click.Choice(["none", "auto", "all"]),
        default="auto",
        show_default=True,
        help="Weights that stay in memory: none, as many as fit, or all (refused where they do not fit).",
    ),
    click.option(
        "--io",
        type=click.Choice(["direct", "buffered"]),
        default="direct",
        show_default=True,
        help="Read past the page cache or through it.",
    ),
)


def keeping_of(window: tuple[int, int] | None, pin: Pin, io: str) -> Keeping:
    """What these flags say."""
    blocks, nbytes = window or (0, 0)
    return Keeping(pin, blocks, nbytes, io == "direct")


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


_GREEDY = Sampling()
_SEED_BITS = 32
_OF_MODELS = ("--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty")


def _sampling_option(name: str, kind: type, says: str | None = None) -> Callable[[_Command], _Command]:
    default = getattr(_GREEDY, _field(name))
    shown = f"{default}; in a chat the model's own" if name in _OF_MODELS else True
    return click.option(name, type=kind, default=default, show_default=shown, help=says)


def _field(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


_SAMPLING = (
    _sampling_option("--temperature", float, "0 is greedy."),
    _sampling_option("--top-k", int, "Keep the K likeliest tokens; 0 keeps all."),
    _sampling_option("--top-p", float, "Keep the likeliest mass P."),
    _sampling_option("--min-p", float, "Drop tokens below P x the likeliest."),
    _sampling_option("--repetition-penalty", float),
    _sampling_option("--presence-penalty", float),
    _sampling_option("--frequency-penalty", float),
    click.option(
        "--logit-bias", type=_LogitBias(), multiple=True, help="Add BIAS to a token's logit; repeatable."
    ),
    click.option("--seed", type=int, help="For the same answer again.  [default: another every time]"),
    _sampling_option("--logprobs", int, "Report the K likeliest tokens (--json)."),
)


def sampling_options(command: _Command) -> _Command:
    """Add every flag of sampling to a command."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


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
    return replace(
        sampling,
        **{name: getattr(usual, name) for name in map(_field, _OF_MODELS) if is_default(name)},
    )


def token_ids(text: str) -> tuple[int, ...]:
    """'1,2,3' -> (1, 2, 3). Raises UserError."""
    try:
        ids = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise UserError(f"--prompt-ids {text[:60]!r} is not a list of token ids like 1,2,3") from None
    if any(not 0 <= token < _TOKEN_IDS for token in ids):
        raise UserError(f"--prompt-ids {text[:60]!r} holds a number that cannot be a token id")
    return ids


def is_default(name: str) -> bool:
    """Whether neither the command line nor settings say anything of this parameter of the running command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def on_either_side(context: click.Context, name: str, value: _Value) -> _Value:
    """`value` of a subcommand's option that its group has too, and that may stand before the subcommand as well.

    The command line counts before settings, and what is said of the subcommand before what is said of its group.
    """
    group = context.parent
    if group is None or _source(context, name) is ParameterSource.COMMANDLINE:
        return value
    if (
        _source(group, name) is ParameterSource.COMMANDLINE
        or _source(context, name) is ParameterSource.DEFAULT
    ):
        of_group: _Value = group.params[name]
        return of_group
    return value


def _source(context: click.Context, name: str) -> ParameterSource | None:
    return context.get_parameter_source(name)
