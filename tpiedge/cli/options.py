"""Flags that several verbs share: where things are kept, what a node may use, how it computes and serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from platformdirs import user_cache_path, user_state_path

from tpiedge.cli.types import Location
from tpiedge.errors import UserError
from tpiedge.host.private_file import check_folder
from tpiedge.pack.precision import Precision
from tpiedge.units import format_bytes, parse_bytes
from tpiedge.wire.control import SPECULATE_AUTO
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, Pin, WirePrecision
from tpiedge.wire.weights import Keeping

_MAX_BLOCKS = 10_000
_MANY_DIGITS = 20
_TOO_LARGE = 1 << 63
_LEAST_MEMORY = 64_000_000
#: A number without a unit below it may be one of MB.
_MOST_MB = 1_000_000
_MOST_DRAFTED = 15  # with the token before them they fill a small batch of the kernels
_GUESSES = {"auto": SPECULATE_AUTO, "off": 0}

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Value = TypeVar("_Value")
Decorator: TypeAlias = Callable[[_Command], _Command]


def together(*options: Decorator[Any]) -> Decorator[Any]:
    """A decorator that adds all of them to a command, in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


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


class _Speculate(click.ParamType[int]):
    """`Assign.speculate`."""

    name = "auto|off|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text in _GUESSES:
            return _GUESSES[text]
        if len(text) > 2 or not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_DRAFTED:
            wanted = f"'auto', 'off' or a number from 1 to {_MOST_DRAFTED}"
            self.fail(f"{text[:20]!r} is none of {wanted}", param, ctx)
        return int(text)

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(word) for word in _GUESSES if word.startswith(incomplete)]


BYTES = _Bytes()
MEMORY = _Memory()


def _folder_option(
    name: str, usual: Callable[[str], Path], within: tuple[str, ...], says: str
) -> Decorator[Any]:
    """A folder in which other users may change what this one reads is refused; `usual` is the one without the flag."""

    def check(ctx: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
        if not ctx.resilient_parsing:  # completion
            check_folder(given or usual("tpiedge"), within, option.opts[0])
        return given

    variable = f"TPIEDGE_{name.upper()}"
    kind = Location(file_okay=False)
    return click.option(f"--{name}", type=kind, envvar=variable, callback=check, help=says)


cache_option = _folder_option(
    "cache",
    user_cache_path,
    ("packs", "hub", "shards"),
    "Folder for packs.  [default: the user's cache folder]",
)
state_option = _folder_option(
    "state",
    user_state_path,
    ("master", "worker"),
    "Folder for keys, members and tokens.  [default: the user's state folder]",
)

arithmetic_options = together(
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
"""See prepare.choose_arithmetics."""

kv_option = click.option(
    "--kv-precision",
    "kv",
    type=click.Choice(get_args(KVPrecision)),
    help="How keys and values are kept; q8 and q4 are quantised.  [default: f32 for f32 arithmetic, else bf16]",
)
own_memory_option = click.option(
    "--memory",
    type=MEMORY,
    help="Of this machine's memory; weights that do not fit stream from disk.  [default: most of what is free]",
)
keeping_options = together(
    click.option(
        "--window",
        type=_Window(),
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
    """What the keeping options say."""
    blocks, nbytes = window or (0, 0)
    return Keeping(pin, blocks, nbytes, io == "direct")


collective_option = click.option(
    "--collective",
    type=click.Choice(get_args(CollectiveChoice)),
    default="auto",
    show_default=True,
    help="How nodes add up their parts; auto: what is fastest over the measured links.",
)
wire_option = click.option(
    "--wire",
    type=click.Choice(get_args(WirePrecision)),
    default="f32",
    show_default=True,
    help="How parts travel between nodes; all but f32 are rounded.",
)
speculate_option = click.option(
    "--speculate",
    type=_Speculate(),
    metavar=f"[{_Speculate.name}]",
    default="auto",
    show_default=True,
    help="Tokens that a step guesses from the text so far and checks at once; no answer changes.",
)


def is_default(name: str) -> bool:
    """Whether neither the command line nor settings say anything of this parameter of the running command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def on_either_side(context: click.Context, name: str, value: _Value) -> _Value:
    """`value` of a subcommand's option that its group has too, and that may stand before the subcommand as well.

    The command line counts before settings, and what is said of the subcommand before what is said of its group.
    """
    group, own = context.parent, context.get_parameter_source(name)
    if group is None or own is ParameterSource.COMMANDLINE:
        return value
    if group.get_parameter_source(name) is ParameterSource.COMMANDLINE or own is ParameterSource.DEFAULT:
        of_group: _Value = group.params[name]
        return of_group
    return value
