"""Environment variables and a TOML file can set every flag of every verb.

A setting becomes a text in click's defaults. The verb checks this text. The command line overrides variables. Variables
override the file. A verb's own setting overrides a common setting. A verb's table is named like "bench.decode"."""

import difflib
import logging
import os
import pkgutil
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from platformdirs import user_config_path

from tpiedge.cli.listing import ListingGroup
from tpiedge.cli.options import Location, value_words
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

COMMON = ("cache", "state", "log-level")  # flags that [common] and TPIEDGE_CACHE set for all verbs
_META = __name__
_MOST_BYTES = 1 << 20
_MOST_DOTS = 2048  # tomllib takes ten seconds for a dotted key of 30,000 parts
_UNCONFIGURED = ("config", "completion")

Verbs = Mapping[str, click.Command]


@dataclass(frozen=True)
class Setting:
    """A flag's value from outside the command line. `origin`: its environment variable, or its place in a file."""

    value: str | list[str]
    origin: str


@dataclass(frozen=True)
class SettingsFile:
    """A settings file. `tables`: values by table and key. Table "" has the keys before the first table."""

    path: Path
    tables: Mapping[str, Mapping[str, object]]
    text: str

    def place(self, table: str, key: str = "") -> str:
        """Returns a key's line, like '/etc/tpiedge.toml:3'."""
        here, wanted = "", _bare(table, key)
        for number, line in enumerate(self.text.splitlines(), 1):
            name = line.partition("=")[0]
            if line.lstrip().startswith("["):
                here, name = line.partition("]")[0].strip("[ \t"), ""
            if _bare(here, name) == wanted:
                return f"{self.path}:{number}"
        return str(self.path)


def _bare(table: str, key: str) -> str:
    return re.sub(r"[\s\"']", "", f"{table}.{key}").strip(".")


class _LazyCommand(click.Command):
    def __init__(self, name: str, path: str, line: str) -> None:
        super().__init__(name, help=line)
        self.path = path


class ConfiguredGroup(ListingGroup):
    """Imports a verb when it runs. Adds --config and --log-level. Errors name the origins of refused values."""

    def add_lazy(self, name: str, path: str, line: str) -> None:
        """Adds the command at `path` (MODULE:COMMAND). `line`: its short help."""
        super().add_command(_LazyCommand(name, path, line))

    def load(self, *names: str) -> None:
        for name in names or tuple(self.commands):
            lazy = self.commands.get(name)
            if isinstance(lazy, _LazyCommand):
                command: click.Command = pkgutil.resolve_name(lazy.path)
                command.help = command.help or lazy.help
                self.add_command(command, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self.load(args[0])
        return super().resolve_command(ctx, args)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        if (name or cmd.name) not in _UNCONFIGURED:
            for _, command in _leaves(cmd, ""):
                _prepare(command)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            leaf, settings = ctx.meta.get(_META, (ctx, {}))
            options = options_of(leaf.command)
            origins = [
                f"--{key} is from {settings[key].origin}"
                for key in dict.fromkeys(re.findall(r"--([a-z][a-z-]*)", str(error)))
                if key in settings
                and leaf.get_parameter_source(options[key].name) is ParameterSource.DEFAULT_MAP
            ]
            if not origins:
                raise
            raise UserError(f"{error} ({', '.join(origins)})") from error


def config_option(**attributes: Any) -> click.Option:
    return click.Option(
        ["--config"],
        type=Location(dir_okay=False),
        metavar="FILE",
        help="Settings.  [default: TPIEDGE_CONFIG, or config.toml in the user's settings folder]",
        **attributes,
    )


def _prepare(command: click.Command) -> None:
    if not any("--config" in param.opts for param in command.params):
        command.params.append(config_option(is_eager=True, expose_value=False, callback=_load))
    if "log-level" not in options_of(command):
        command.params.append(
            click.Option(
                ["--log-level"],
                type=click.Choice(["debug", "info", "warning", "error"]),
                expose_value=False,
                callback=_start_log,
                help="Log to standard error from this level on.",
            )
        )


def _load(ctx: click.Context, _param: click.Parameter, given: Path | None) -> None:
    """Sets the defaults of all other parameters, also in subcommands."""
    if ctx.resilient_parsing:  # completion
        return
    given = ctx.meta[f"{_META}.given"] = given or ctx.meta.get(f"{_META}.given")
    root = ctx.find_root()
    words = ctx.command_path.removeprefix(root.command_path).split()
    verbs = verbs_of(root.command, words[:1])
    for name, meant in unused_variables(verbs, os.environ).items():
        if meant:
            raise UserError(f"the variable {name} sets nothing; did you mean {meant}?")
        click.echo(f"tpiedge: the variable {name} sets nothing", err=True)
    options = options_of(ctx.command)
    settings = effective(root.command, ".".join(words), ctx.command, given)
    # A group's flags count for its subcommand; its settings are the subcommand's defaults.
    above, of_group = ctx.meta.get(_META, (ctx, {}))
    settings = {key: one for key, one in of_group.items() if key in options} | settings
    typed = {
        name: value
        for name, value in above.params.items()
        if above.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    settings = {key: one for key, one in settings.items() if options[key].name not in typed}
    ctx.default_map = {options[key].name or key: one.value for key, one in settings.items()} | typed
    ctx.meta[_META] = (ctx, settings)


def named_settings(ctx: click.Context) -> Path | None:
    """Returns the file of --config, or None."""
    given: Path | None = ctx.meta.get(f"{_META}.given")
    return given


def _start_log(_ctx: click.Context, _param: click.Parameter, level: str | None) -> None:
    if level is not None:
        logging.basicConfig(
            level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )


def verbs_of(root: click.Command, names: Collection[str] | None = None) -> Verbs:
    """Returns the commands that settings can change, keyed by table. `names`: the verbs to import; None: all."""
    children = {root.name or "": root}
    if isinstance(root, ConfiguredGroup):
        root.load(*(names or ()))
        children = {name: one for name, one in root.commands.items() if names is None or name in names}
    return {
        table: command
        for name, child in children.items()
        if name not in _UNCONFIGURED
        for table, command in _leaves(child, name)
    }


def _leaves(command: click.Command, table: str) -> Iterator[tuple[str, click.Command]]:
    if command.hidden:
        return
    children = command.commands if isinstance(command, click.Group) else {}
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield table, command
    for name, child in children.items():
        yield from _leaves(child, f"{table}.{name}")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Returns the options that settings can set, keyed by names like 'min-workers'."""
    options = (param for param in command.params if isinstance(param, click.Option) and not param.is_eager)
    return {
        next((name for name in one.opts if name.startswith("--")), one.opts[0]).lstrip("-"): one
        for one in options
    }


def variables_of(table: str, key: str) -> tuple[str, ...]:
    """Returns a flag's environment variables. The first one that is set counts."""
    own = _variable(table, key)
    return (own, _variable(key)) if key in COMMON else (own,)


def _variable(*words: str) -> str:
    return re.sub("[-.]", "_", "_".join(("TPIEDGE", *words)).upper())


def unused_variables(verbs: Verbs, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that set nothing, each with the variable that was probably meant, or ""."""
    known = [
        name for table, verb in verbs.items() for key in options_of(verb) for name in variables_of(table, key)
    ]
    found = {}
    for prefix in {_variable(table.partition(".")[0], "") for table in verbs}:
        bare = {name.removeprefix(prefix): name for name in known if name.startswith(prefix)}
        for name in environment:
            if name.startswith(prefix) and name not in known:
                meant = difflib.get_close_matches(name.removeprefix(prefix), bare, 1, 0.75)
                found[name] = bare[meant[0]] if meant else ""
    return found


def resolve(
    table: str, command: click.Command, environment: Mapping[str, str], file: SettingsFile | None
) -> dict[str, Setting]:
    """Returns the unchecked settings of a verb, keyed by flag. Raises UserError."""
    found: dict[str, Setting] = {}
    for key, option in options_of(command).items():
        several = option.multiple or option.nargs != 1
        for name in variables_of(table, key):
            if text := environment.get(name):  # empty counts as not set
                found.setdefault(key, Setting(_listed(name, text) if several else text, name))
        for place in (table, "common") if key in COMMON else (table,):
            if file is not None and key in file.tables.get(place, {}):
                value = file.tables[place][key]
                origin = f"{file.place(place, key)} [{place}] {key}"
                given = [_text(item) for item in value] if isinstance(value, list) else _text(value)
                found.setdefault(key, Setting(given, origin))
    return found


def _listed(name: str, text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return [str(item) for item in tomllib.loads(f"items = {text}")["items"]]
    except ValueError:
        raise UserError(f'{name} is not a list like ["a", "b"]') from None


def effective(
    root: click.Command, table: str, command: click.Command, given: Path | None
) -> dict[str, Setting]:
    """Returns the checked settings of a command, keyed by flag. Raises UserError."""
    file = find_settings(given, os.environ)
    if file is not None:
        named = {name.partition(".")[0] for name in (table, *file.tables)}
        if any(problems(file, verbs_of(root, named))):
            raise UserError(next(problems(file, verbs_of(root))))  # the words may name any verb
    settings = resolve(table, command, os.environ, file)
    for problem in refused(command, settings):
        raise UserError(problem)
    return settings


def find_settings(given: Path | None, environment: Mapping[str, str]) -> SettingsFile | None:
    """Reads the file `given`, or the file of TPIEDGE_CONFIG, or the user's own, if any. Raises UserError."""
    if given is not None:
        return read_settings(given)
    if named := environment.get("TPIEDGE_CONFIG"):
        try:
            return read_settings(Path(named))
        except UserError as error:
            raise UserError(f"TPIEDGE_CONFIG: {error}") from None
    # A file in the current folder never counts: a download must not change what a command does.
    own = user_config_path("tpiedge") / "config.toml"
    return read_settings(own) if os.path.lexists(own) else None


def read_settings(path: Path) -> SettingsFile:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UserError(f"the settings file {path} is larger than 1 MiB")
        text = data.decode()
        if text.count(".") > _MOST_DOTS:
            raise UserError(f"the settings file {path} has more than {_MOST_DOTS} dots")
        tables: dict[str, dict[str, object]] = {}
        content = tomllib.loads(text)
        str(content)  # refuses numbers of too many digits
        for table, key, value in _flatten("", content):
            tables.setdefault(table, {}).update({key: value} if key else {})
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}; name another one") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"the settings file {path} is not valid TOML: {sanitised_line(error, 300)}") from None
    return SettingsFile(path, tables, text)


def _flatten(table: str, content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    if table and not content:
        yield table, "", None
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flatten(f"{table}.{key}".strip("."), value)
        else:
            yield table, key, value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def problems(file: SettingsFile, verbs: Verbs) -> Iterator[str]:
    """Yields a line for each unknown table, unknown key or value of a wrong type."""
    flags_of: dict[str, Mapping[str, click.Option]] = {
        table: options_of(command) for table, command in verbs.items()
    }
    flags_of["common"] = {key: click.Option([f"--{key}"]) for key in COMMON}
    for table, entries in file.tables.items():
        if table and table not in flags_of:
            meant = nearest(table, flags_of)
            yield f"{file.place(table)}: there is no table [{sanitised_line(table, 80)}]{meant}"
            continue
        for key, value in entries.items():
            place, shown = file.place(table, key), sanitised_line(key, 80)
            if not table and key in flags_of:
                yield f"{place}: {key} is a table: write [{key}]"
            elif not table:
                yield f"{place}: {shown} stands before the first table: put it below one, like [run]"
            elif key not in flags_of[table]:
                yield f"{place}: [{table}] has no key {shown}{nearest(key, flags_of[table])}"
            elif wanted := _other_type(flags_of[table][key], value):
                yield f"{place}: {key} in [{table}] must be {wanted}"


def _other_type(option: click.Option, value: object) -> str:
    """Returns what the option takes, or "" if it takes `value`."""
    words = "a text in quotes"
    types: set[type] = {str}
    if isinstance(option.type, click.types.BoolParamType):
        words, types = "true or false", {bool}
    elif isinstance(option.type, click.types.IntParamType):  # also of flags that are counted
        words, types = "an integer", {int}
    elif isinstance(option.type, click.types.FloatParamType):
        words, types = "a number", {int, float}
    elif {"N", "SIZE"} & {*option.type.name.split("|")}:
        words, types = "a text in quotes or an integer", {str, int}
    if not (option.multiple or option.nargs != 1):
        return "" if type(value) in types else words
    fits = isinstance(value, list) and {type(item) for item in value} <= types
    return "" if fits else f"a list, each of it {words}"


def refused(command: click.Command, settings: Mapping[str, Setting]) -> Iterator[str]:
    context, options = click.Context(command), options_of(command)
    for key, setting in settings.items():
        try:
            options[key].type_cast_value(context, setting.value)
        except click.BadParameter as error:
            why = sanitised_line(value_words(error.message, error), 300)
            yield f"{setting.origin}: --{key}: {why}"


def nearest(name: str, known: Collection[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
