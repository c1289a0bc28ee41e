"""Every flag of every verb, set from outside the command line as well: variables, a settings file.

A verb added to `ConfiguredGroup` gets --config and --log-level and needs nothing else. What the settings say becomes
click's map of defaults, so the command line wins, and the verb's own types check it.
"""

import logging
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.late import LateGroup
from tpiedge.cli.types import Location
from tpiedge.cli.usage import value_words
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.settings.check import check_settings, problems
from tpiedge.settings.file import SettingsFile, find_settings
from tpiedge.settings.resolve import Setting, check_variables, resolve
from tpiedge.settings.schema import COMMON, SECRETS, Flag, Kind, Verb

_META = __name__
_GIVEN = f"{__name__}.given"
_UNCONFIGURED = ("config", "completion")
_LEVELS = ("debug", "info", "warning", "error")
_MAX_PROBLEM = 300
_FLAG_NAME = re.compile(r"--([a-z][a-z-]*)")


class ConfiguredGroup(LateGroup):
    """The root group: prepares what is added, and says of a refused value where it came from."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        if (name or cmd.name) not in _UNCONFIGURED:
            for _, command in _leaves(cmd, ()):
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


def verbs_of(root: click.Command, names: Collection[str] | None = None) -> dict[Verb, click.Command]:
    """What can be set, and the commands it belongs to. A group that runs without a subcommand is a verb as well.

    `names`: of the root's own commands, those to look into; without it all, which imports them.
    """
    if isinstance(root, ConfiguredGroup):
        wanted = [name for name in root.commands if names is None or name in names]
        for name in wanted:
            root.load(name)
        children = {name: root.commands[name] for name in wanted}
    else:
        children = {root.name or "": root}
    return {
        Verb(words, tuple(_flag(option) for option in options_of(command))): command
        for name, child in children.items()
        if name not in _UNCONFIGURED
        for words, command in _leaves(child, (name,))
    }


def options_of(command: click.Command) -> list[click.Option]:
    """The options that settings can set."""
    return [param for param in command.params if isinstance(param, click.Option) and not param.is_eager]


def effective(
    root: click.Command, verb: Verb, command: click.Command, given: Path | None
) -> dict[str, Setting]:
    """The command's settings by key, all checked. Raises UserError that names the origin of a bad one."""
    file = find_settings(given, os.environ)
    if file is not None:
        _check_file(root, file)
    settings = resolve(verb, os.environ, file)
    for option in options_of(command):
        setting = settings.get(key_of(option))
        if setting is not None and (problem := value_problem(command, option, setting.value)):
            raise UserError(f"{setting.origin}: {problem}")
    return settings


def _check_file(root: click.Command, file: SettingsFile) -> None:
    """Against the verbs that it speaks of; where it is not in order, the words about it may name any verb."""
    named = verbs_of(root, {table.partition(".")[0] for table in file.tables})
    if any(problems(file, named)):
        check_settings(file, verbs_of(root))


def value_problem(command: click.Command, option: click.Option, value: object) -> str:
    """Why the option's type refuses `value`; empty if it does not."""
    context = click.Context(command)
    try:
        option.type_cast_value(context, value)
    except click.BadParameter as error:
        return f"--{key_of(option)}: {sanitised_line(value_words(error.message, error), _MAX_PROBLEM)}"
    return ""


def check_values(root: click.Command, file: SettingsFile) -> Iterator[str]:
    """What the verbs' own types refuse in a file whose tables, keys and kinds are in order."""
    for verb, command in verbs_of(root).items():
        settings = resolve(verb, {}, file)
        for option in options_of(command):
            setting = settings.get(key_of(option))
            if setting is not None and (problem := value_problem(command, option, setting.value)):
                yield f"{setting.origin}: {problem}"


def key_of(option: click.Parameter) -> str:
    """'min-workers' of --min-workers."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def _prepare(command: click.Command) -> None:
    for option in options_of(command):
        if key_of(option) in COMMON:
            option.envvar = None  # read here instead, after the verb's own variable
        if key_of(option) in SECRETS:
            option.callback = _forget_secret
    taken = {name for param in command.params for name in param.opts}
    if "--config" not in taken:
        command.params.append(config_option(is_eager=True, expose_value=False, callback=_load))
    if "--log-level" not in taken:
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
    suffix = "_" + key_of(option).upper().replace("-", "_")
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
    verbs = verbs_of(root, [_first_word(ctx)])
    verb = next(verb for verb, command in verbs.items() if command is ctx.command)
    for name in check_variables(verb, list(verbs), os.environ):
        click.echo(f"tpiedge: the variable {name} sets nothing", err=True)
    settings = effective(root, verb, ctx.command, given)
    names = {key_of(option): option.name for option in options_of(ctx.command)}
    ctx.default_map = {names[key] or key: setting.value for key, setting in settings.items()}
    ctx.meta[_META] = (ctx, settings)


def _first_word(ctx: click.Context) -> str:
    """'bench' of `tpiedge bench decode`."""
    while ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return ctx.info_name or ""


def _start_log(_ctx: click.Context, _param: click.Parameter, level: str | None) -> None:
    if level is not None:
        logging.basicConfig(
            level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )


def _origins(ctx: click.Context, message: str) -> list[str]:
    """'--nodes is from TPIEDGE_RUN_NODES' for each flag that the message names."""
    if _META not in ctx.meta:
        return []
    leaf, settings = ctx.meta[_META]
    names = {key_of(option): option.name for option in options_of(leaf.command)}
    return [
        f"--{key} is from {settings[key].origin}"
        for key in dict.fromkeys(_FLAG_NAME.findall(message))
        if key in settings and leaf.get_parameter_source(names[key]) is click.core.ParameterSource.DEFAULT_MAP
    ]


def _leaves(
    command: click.Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """What people can run, by its words: nothing outside the command line sets what is for processes alone."""
    if command.hidden:
        return
    if not isinstance(command, click.Group):
        yield words, command
        return
    if command.invoke_without_command:  # it does something by itself
        yield words, command
    for name, child in command.commands.items():
        yield from _leaves(child, (*words, name))


def _flag(option: click.Option) -> Flag:
    return Flag(key_of(option), _kind(option), option.multiple or option.nargs != 1)


def _kind(option: click.Option) -> Kind:
    if option.is_flag and option.is_bool_flag:
        return "boolean"
    if option.count or isinstance(option.type, click.types.IntParamType):
        return "integer"
    if isinstance(option.type, click.types.FloatParamType):
        return "number"
    alternatives = option.type.name.split("|")
    if "N" in alternatives:
        return "word"
    return "size" if "SIZE" in alternatives else "text"
