"""Shared flags, their types, and messages for wrong command lines."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from platformdirs import user_cache_path, user_state_path

from tpiedge.errors import UserError
from tpiedge.host.private_file import check_folder
from tpiedge.pack.specs import CHOICES
from tpiedge.units import format_bytes, parse_bytes
from tpiedge.wire.control import SPECULATE_AUTO
from tpiedge.wire.fields import CollectiveChoice, Compute, Keeping, KVPrecision, WirePrecision

_Command = TypeVar("_Command", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[_Command], _Command]


def together(*options: Decorator[Any]) -> Decorator[Any]:
    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(
    flag: str,
    says: str | None = None,
    kind: Any = None,
    default: Any = None,
    name: str | None = None,
    **more: Any,
) -> Decorator[Any]:
    """Makes a click option that shows its default. `says`: its help. `name`: the parameter's name."""
    if default is not None:
        more |= {"default": default, "show_default": True}
    return click.option(flag, *([] if name is None else [name]), type=kind, help=says, **more)


def argument_too(
    name: str, says: str, kind: Any = None, parameter: str = ""
) -> Decorator[Callable[..., Any]]:
    """Adds an option --`name` that may be given as an argument instead. `parameter`: its name, by default `name`."""
    parameter = parameter or name

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument(f"{name}_argument", metavar=f"[{name.upper()}]", required=False, type=kind)
        @click.option(f"--{name}", parameter, type=kind, help=says)
        @functools.wraps(command)
        def named(*args: Any, **flags: Any) -> Any:
            source = click.get_current_context().get_parameter_source(parameter)
            if (argument := flags.pop(f"{name}_argument")) is not None:
                if source is ParameterSource.COMMANDLINE:
                    raise UserError(f"give the {name} once: as the argument or with --{name}")
                flags[parameter] = argument
            return command(*args, **flags)

        return named

    return add


class Location(click.Path):
    """A path that is not empty. An empty path would mean the current folder."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists, file_okay, dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty: give a path", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within a range; NaN is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number", param, ctx)
        return found


class CompletedName(click.types.StringParamType):
    """A name or path, with completion. `sources` return known names."""

    def __init__(self, *sources: Callable[[click.Context], Iterable[str]]) -> None:
        self.sources = sources

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        found: list[str] = []
        for source in self.sources:
            with suppress(Exception):  # a traceback would spoil the line
                found += source(ctx)
        names = [name for name in dict.fromkeys(found) if name.startswith(incomplete)]
        # Paths first: bash forgets names that come before.
        return [CompletionItem(incomplete, type="file"), *map(CompletionItem, names)]


class Parsed(click.ParamType[Any]):
    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except UserError as error:
            self.fail(str(error), param, ctx)


def _memory(text: str) -> int:
    text = text.strip()
    nbytes = parse_bytes(text)
    if text.isdecimal():
        meant = format_bytes(nbytes).replace(" ", "") if nbytes >= 64_000_000 else f"{text}MB"
        unlikely = nbytes == 0 or 1_000_000 <= nbytes < 64_000_000
        raise UserError(
            f"{text} has no unit: {'write it like 4GB' if unlikely else f'did you mean {meant}?'}"
        )
    if nbytes < 64_000_000:
        raise UserError(f"{text} is less than any node can work with: give 64MB or more")
    return nbytes


def _window(text: str) -> tuple[int, int]:
    if not text.isdecimal():
        return 0, parse_bytes(text)
    if len(text) > 5 or not 1 <= int(text) <= 10_000:
        raise UserError(f"{text[:20]} blocks are out of range: 1 to 10000, or a size like 500MB")
    return int(text), 0


def _speculate(text: str) -> int:
    # 15 drafts and the token before them fill a small batch of the kernels.
    words = {"auto": SPECULATE_AUTO, "off": 0} | {str(number): number for number in range(1, 16)}
    if text not in words:
        raise UserError(f"{text[:20]!r} is none of 'auto', 'off' or a number from 1 to 15")
    return words[text]


BYTES = Parsed("SIZE", parse_bytes)
MEMORY = Parsed("SIZE", _memory)


def usage_words(error: click.ClickException) -> str:
    alike = getattr(error, "possibilities", None)
    if isinstance(error, click.NoSuchOption) and alike:
        return f"{error.message} Did you mean {alike[0]!r}?"
    words = error.format_message()
    if alike or isinstance(error, click.BadParameter) or not isinstance(error, click.UsageError):
        return value_words(words, error)
    if error.ctx is None:
        return words
    if "extra argument" in words and any(one.name == "prompt_argument" for one in error.ctx.command.params):
        return f"{words.removesuffix('.')}: put the prompt in quotes"
    return f"{words.removesuffix('.')}: '{error.ctx.command_path} --help' lists what there is"


def value_words(words: str, error: click.ClickException) -> str:
    found = re.search(r" is not a valid (integer|float)( range)?\.$", words)
    if found is None:
        return words
    said = words[: found.start()] + (
        " is not a whole number" if found[1] == "integer" else " is not a number"
    )
    kind = getattr(getattr(error, "param", None), "type", None)
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return said
    return f"{said}: give one from {kind.min}{'' if kind.max is None else f' to {kind.max}'}"


def is_default(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def _folder_option(
    name: str, usual: Callable[[str], Path], within: tuple[str, ...], says: str
) -> Decorator[Any]:
    """Makes an option for a folder that other users cannot change."""

    def check(ctx: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
        if not ctx.resilient_parsing:  # completion
            check_folder(given or usual("tpiedge"), within, option.opts[0])
        return given

    return click.option(f"--{name}", type=Location(file_okay=False), callback=check, help=says)


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
    "Folder for keys, members, tokens and chats' history.  [default: the user's state folder]",
)


PRECISION = click.Choice([one.value for one in CHOICES])


def precision_option(says: str) -> Decorator[Any]:
    """Makes the option --precision. Its value is None for "keep"."""
    kind = click.Choice(["keep", *PRECISION.choices])
    return option(
        "--precision", says, kind, callback=lambda _c, _p, value: None if value == "keep" else value
    )


arithmetic_options = together(
    precision_option("Precision of stored weights; q8 and q4 are quantised.  [default: keep the model's]"),
    option(
        "--compute",
        "Precision of arithmetic.  [default: int8 for q8 and q4, else f32]",
        click.Choice(get_args(Compute)),
    ),
)
kv_option = option(
    "--kv-precision",
    "Precision of the KV cache; q8 and q4 are quantised.  [default: f32 for f32 arithmetic, else bf16]",
    click.Choice(get_args(KVPrecision)),
    name="kv",
)
own_memory_option = option(
    "--memory",
    "Memory to use here; weights that do not fit stream from disk.  [default: most of what is free]",
    MEMORY,
)
keeping_options = together(
    option(
        "--window",
        "Buffer for streamed weights: 4 (blocks; two make a layer) or 500MB.  [default: two blocks]",
        Parsed("BLOCKS|SIZE", _window),
    ),
    option(
        "--pin",
        "Weights to keep in memory: none, as many as fit, or all (refused if they do not fit).",
        click.Choice(["none", "auto", "all"]),
        "auto",
    ),
    option("--io", "Read without or with the page cache.", click.Choice(["direct", "buffered"]), "direct"),
)
page_options = together(
    option(
        "--keep-context",
        "Disk space here for the KV cache of prompts, which then survives restarts; used if each machine of the plan "
        "gives some. The KV cache reveals prompts, so its files are encrypted.  [default: none]",
        BYTES,
        name="keep_bytes",
    ),
    option(
        "--kv-disk",
        "Disk space here for the KV cache of waiting conversations; used if each machine of the plan gives some.  "
        "[default: none]",
        BYTES,
        name="park_bytes",
    ),
)
collective_option = option(
    "--collective",
    "All-reduce algorithm; auto: the fastest over the measured links.",
    click.Choice(get_args(CollectiveChoice)),
    "auto",
)
wire_option = option(
    "--wire",
    "Precision of all-reduce messages; all but f32 are rounded.",
    click.Choice(get_args(WirePrecision)),
    "f32",
)
speculate_option = option(
    "--speculate",
    "Tokens drafted per step from the text so far (prompt lookup); no answer changes.",
    Parsed("auto|off|N", _speculate),
    "auto",
    metavar="[auto|off|N]",
)


def keeping_of(flags: Mapping[str, Any]) -> Keeping:
    blocks, nbytes = flags["window"] or (0, 0)
    return Keeping(flags["pin"], blocks, nbytes, flags["io"] == "direct")
