"""Every flag of every verb, set from outside the command line as well: variables, a settings file.

A verb added to `ConfiguredGroup` gets --config and --log-level and needs nothing else. What the settings say becomes
click's map of defaults, so the command line wins, and the verb's own types check it. A variable counts before the file,
and what is said of the verb before what is said of all verbs. A verb goes by its table in a file: "bench.decode".
"""

import difflib
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tpiedge.cli.listing import LateGroup
from tpiedge.cli.settings_file import SettingsFile, find_settings
from tpiedge.cli.types import Location, value_words
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.toml_text import parse_toml

COMMON_TABLE = "common"
COMMON = ("cache", "state", "log-level")
"""Flags that mean the same to every verb: the table [common] and TPIEDGE_CACHE set them for all of them."""

SECRETS = frozenset({"api-key", "token", "password", "secret", "hub-token"})
"""Flags whose values are never shown."""

Verbs = Mapping[str, click.Command]

_META = __name__
_GIVEN = f"{__name__}.given"
_UNCONFIGURED = ("config", "completion")
_LEVELS = ("debug", "info", "warning", "error")
_MAX_PROBLEM = 300
_ALIKE = 0.75
_FLAG_NAME = re.compile(r"--([a-z][a-z-]*)")
#: What a value of a file must be, in words, and the types that it has then.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "true or false": (bool,),
    "an integer": (int,),
    "a number": (int, float),
    "a text in quotes": (str,),
    'a size like "4GB" or an integer': (int, str),
    "a word in quotes or an integer": (int, str),
}
_FOUND = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
}


@dataclass(frozen=True)
class Setting:
    """A value from outside the command line. `origin` names it for people: a variable, or file, line and key."""

    value: object
    origin: str


class ConfiguredGroup(LateGroup):
    """The root group: prepares what is added, and says of a refused value where it came from."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        if (name or cmd.name) not in _UNCONFIGURED:
            for _, command in _leaves(cmd, ""):
                _prepare(command)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            origins = _origins(ctx, str(error))
            if not origins:
                raise
            raise UserError(f"{error} ({', '.join(origins)})") from error


def config_option(**attributes: Any) -> click.Option:
    """--config FILE."""
    return click.Option(
        ["--config"],
        type=Location(dir_okay=False),
        metavar="FILE",
        help="Settings.  [default: TPIEDGE_CONFIG, or config.toml in the user's settings folder]",
        **attributes,
    )


def verbs_of(root: click.Command, names: Collection[str] | None = None) -> Verbs:
    """What can be set. A group that runs without a subcommand is a verb as well.

    `names`: of the root's own commands, those to look into; without it all, which imports them.
    """
    children = {root.name or "": root}
    if isinstance(root, ConfiguredGroup):
        wanted = [name for name in root.commands if names is None or name in names]
        for name in wanted:
            root.load(name)
        children = {name: root.commands[name] for name in wanted}
    return {
        table: command
        for name, child in children.items()
        if name not in _UNCONFIGURED
        for table, command in _leaves(child, name)
    }


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options that settings can set, by key: 'min-workers' is that of --min-workers."""
    options = (param for param in command.params if isinstance(param, click.Option) and not param.is_eager)
    return {
        next((name for name in one.opts if name.startswith("--")), one.opts[0]).lstrip("-"): one
        for one in options
    }


def variables_of(table: str, key: str) -> tuple[str, ...]:
    """The environment variables that set a flag; the first that is set counts."""
    own = _variable(table, key)
    return (own, _variable(key)) if key in COMMON else (own,)


def resolve(
    table: str, command: click.Command, environment: Mapping[str, str], file: SettingsFile | None
) -> dict[str, Setting]:
    """The settings of a verb by key, unchecked. Raises UserError for a variable that is no list."""
    found = {}
    for key, option in options_of(command).items():
        for name in variables_of(table, key):
            if key not in found and (text := environment.get(name)):  # an empty one counts as not set
                found[key] = Setting(_listed(name, text) if _takes_list(option) else text, name)
        for place in (table, COMMON_TABLE) if key in COMMON else (table,):
            if key not in found and file is not None and key in file.tables.get(place, {}):
                origin = f"{file.place(place, key)} [{place}] {key}"
                found[key] = Setting(file.tables[place][key], origin)
    return found


def effective(
    root: click.Command, table: str, command: click.Command, given: Path | None
) -> dict[str, Setting]:
    """The command's settings by key, all checked. Raises UserError that names the origin of a bad one."""
    file = find_settings(given, os.environ)
    # Against the verbs that it speaks of; where it is not in order, the words about it may name any verb.
    if file is not None and any(
        problems(file, verbs_of(root, {one.partition(".")[0] for one in file.tables}))
    ):
        check_settings(file, verbs_of(root))
    settings = resolve(table, command, os.environ, file)
    for problem in _refused(command, settings):
        raise UserError(problem)
    return settings


def check_settings(file: SettingsFile, verbs: Verbs) -> None:
    """Raises UserError with the first problem."""
    first, *others = [*problems(file, verbs), ""]
    if first:
        more = f" (and {len(others) - 1} more: tpiedge config check {file.path})" if len(others) > 1 else ""
        raise UserError(first + more)


def problems(file: SettingsFile, verbs: Verbs) -> Iterator[str]:
    """Unknown tables and keys, and values of the wrong type: each as a line that names the place, the key and,
    where one is near, the known key."""
    kinds = {
        table: {key: _wanted(one) for key, one in options_of(verb).items()} for table, verb in verbs.items()
    }
    kinds[COMMON_TABLE] = dict.fromkeys(COMMON, ("a text in quotes", False))
    for table, entries in file.tables.items():
        known, tables = kinds.get(table), list(kinds)
        if not table:
            yield from (f"{file.place('', key)}: {_outside(key, tables)}" for key in entries)
        elif known is None:
            yield f"{file.place(table)}: there is no table [{sanitised_line(table, 80)}]{nearest(table, tables)}"
        else:
            yield from (
                f"{file.place(table, key)}: {problem}"
                for key, value in entries.items()
                if (problem := _key_problem(table, key, value, known))
            )


def check_values(root: click.Command, file: SettingsFile) -> Iterator[str]:
    """What the verbs' own types refuse in a file whose tables, keys and kinds are in order."""
    for table, command in verbs_of(root).items():
        yield from _refused(command, resolve(table, command, {}, file))


def unused_variables(verbs: Verbs, environment: Mapping[str, str]) -> list[str]:
    """Variables that look like those of the verbs but set nothing: typing errors, mostly."""
    known = {
        name for table, verb in verbs.items() for key in options_of(verb) for name in variables_of(table, key)
    }
    prefixes = tuple(_variable(table, "") for table in verbs)
    return sorted(name for name in environment if name.startswith(prefixes) and name not in known)


def check_variables(table: str, verbs: Verbs, environment: Mapping[str, str]) -> list[str]:
    """The unused variables that are this verb's by their prefix and resemble none of its flags: others may have set
    them for purposes of their own. Raises UserError for one that is a typing error, as for a key of a file."""
    prefixes = {_variable(one, ""): one for one in verbs}
    strange = [
        name
        for name in unused_variables(verbs, environment)
        if prefixes[max(filter(name.startswith, prefixes), key=len)] == table
    ]
    known = [name for key in options_of(verbs[table]) for name in variables_of(table, key)]
    prefix = _variable(table, "")
    bare = {name.removeprefix(prefix): name for name in known}
    for name in strange:
        if meant := difflib.get_close_matches(name.removeprefix(prefix), bare, 1, _ALIKE):
            raise UserError(f"the variable {name} sets nothing; did you mean {bare[meant[0]]}?")
    return strange


def nearest(name: str, known: Collection[str]) -> str:
    """'; did you mean nodes?', or nothing."""
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


def _refused(command: click.Command, settings: Mapping[str, Setting]) -> Iterator[str]:
    """What the options' types refuse, and where it is from."""
    context, options = click.Context(command), options_of(command)
    for key, setting in settings.items():
        try:
            options[key].type_cast_value(context, setting.value)
        except click.BadParameter as error:
            why = sanitised_line(value_words(error.message, error), _MAX_PROBLEM)
            yield f"{setting.origin}: --{key}: {why}"


def _outside(key: str, tables: Collection[str]) -> str:
    if key in tables:
        return f"{key} is a table: write [{key}]"
    return f"{sanitised_line(key, 80)} stands before the first table: put it below one, like [run]"


def _key_problem(table: str, key: str, value: object, known: Mapping[str, tuple[str, bool]]) -> str:
    if key not in known:
        return f"[{table}] has no key {sanitised_line(key, 80)}{nearest(key, known)}"
    kind, several = known[key]
    items = value if several and isinstance(value, list) else [value]
    if several == isinstance(value, list) and all(
        isinstance(item, _KINDS[kind]) and isinstance(item, bool) == (kind == "true or false")
        for item in items
    ):
        return ""
    found = type(value).__name__
    wanted = f"a list, each of it {kind}" if several else kind
    return f"{key} in [{table}] must be {wanted}, not {_FOUND.get(found, found)}"


def _wanted(option: click.Option) -> tuple[str, bool]:
    """The kind of value that a file has for the option, and whether it has a list of them."""
    alternatives = option.type.name.split("|")
    kind = "a text in quotes"
    if option.is_flag and option.is_bool_flag:
        kind = "true or false"
    elif option.count or isinstance(option.type, click.types.IntParamType):
        kind = "an integer"
    elif isinstance(option.type, click.types.FloatParamType):
        kind = "a number"
    elif "N" in alternatives:
        kind = "a word in quotes or an integer"
    elif "SIZE" in alternatives:
        kind = 'a size like "4GB" or an integer'
    return kind, _takes_list(option)


def _takes_list(option: click.Option) -> bool:
    return option.multiple or option.nargs != 1


def _listed(name: str, text: str) -> list[str]:
    """One value, or several as a TOML list: ["a b", "c"]."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        items = parse_toml(f"items = {text}", name)["items"]
    except UserError:
        items = None
    if not isinstance(items, list) or not all(isinstance(item, str | int | float) for item in items):
        raise UserError(f'{name} is not a list like ["a", "b"]')
    return [str(item) for item in items]


def _variable(*words: str) -> str:
    return re.sub("[-.]", "_", "_".join(("TPIEDGE", *words)).upper())


def _prepare(command: click.Command) -> None:
    options = options_of(command)
    for key, option in options.items():
        if key in COMMON:
            option.envvar = None  # read here instead, after the verb's own variable
        if key in SECRETS:
            option.callback = _forget_secret
    if not any("--config" in param.opts for param in command.params):
        command.params.append(config_option(is_eager=True, expose_value=False, callback=_load))
    if "log-level" not in options:
        command.params.append(
            click.Option(
                ["--log-level"],
                type=click.Choice(_LEVELS),
                expose_value=False,
                callback=_start_log,
                help="Log to standard error from this level on.",
            )
        )


def _forget_secret(_ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Removes what was read from the environment, which processes that are started from now on would get."""
    suffix = _variable(option.opts[0].lstrip("-")).removeprefix("TPIEDGE")
    for name in [name for name in os.environ if name.startswith("TPIEDGE_") and name.endswith(suffix)]:
        del os.environ[name]
    return value


def _load(ctx: click.Context, _param: click.Parameter, given: Path | None) -> None:
    """Before any other parameter is looked at: their defaults. A file given to a group counts for its subcommand."""
    if ctx.resilient_parsing:  # completion
        return
    given = given or ctx.meta.get(_GIVEN)
    ctx.meta[_GIVEN] = given
    root = ctx.find_root().command
    first = ctx  # of `tpiedge bench decode`, that of bench
    while first.parent is not None and first.parent.parent is not None:
        first = first.parent
    verbs = verbs_of(root, [first.info_name or ""])
    table = next(table for table, command in verbs.items() if command is ctx.command)
    for name in check_variables(table, verbs, os.environ):
        click.echo(f"tpiedge: the variable {name} sets nothing", err=True)
    settings = effective(root, table, ctx.command, given)
    names = {key: option.name or key for key, option in options_of(ctx.command).items()}
    ctx.default_map = {names[key]: setting.value for key, setting in settings.items()}
    ctx.meta[_META] = (ctx, names, settings)


def _start_log(_ctx: click.Context, _param: click.Parameter, level: str | None) -> None:
    if level is not None:
        logging.basicConfig(
            level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )


def _origins(ctx: click.Context, message: str) -> list[str]:
    """'--nodes is from TPIEDGE_RUN_NODES' for each flag that the message names."""
    leaf, names, settings = ctx.meta.get(_META, (ctx, {}, {}))
    return [
        f"--{key} is from {settings[key].origin}"
        for key in dict.fromkeys(_FLAG_NAME.findall(message))
        if key in settings and leaf.get_parameter_source(names[key]) is ParameterSource.DEFAULT_MAP
    ]


def _leaves(command: click.Command, table: str) -> Iterator[tuple[str, click.Command]]:
    """What people can run, by its table: nothing outside the command line sets what is for processes alone."""
    if command.hidden:
        return
    children = command.commands if isinstance(command, click.Group) else {}
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield table, command
    for name, child in children.items():
        yield from _leaves(child, f"{table}.{name}")
