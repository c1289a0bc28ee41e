"""Which value counts: the environment before the file. (The command line comes before both, defaults last.)"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.settings.file import SettingsFile
from tpiedge.settings.schema import COMMON_TABLE, Flag, Verb
from tpiedge.toml_text import parse_toml

_ALIKE = 0.75


@dataclass(frozen=True)
class Setting:
    """A value from outside the command line. `origin` names it for people: a variable, or file, line and key."""

    flag: Flag
    value: object
    origin: str


def resolve(verb: Verb, environment: Mapping[str, str], file: SettingsFile | None) -> dict[str, Setting]:
    """Key -> setting, for the flags that are set at all. Raises UserError for a variable that is no list."""
    found = {}
    for flag in verb.flags:
        setting = _from_environment(verb, flag, environment) or _from_file(verb, flag, file)
        if setting is not None:
            found[flag.key] = setting
    return found


def unused_variables(verbs: Sequence[Verb], environment: Mapping[str, str]) -> list[str]:
    """Variables that look like those of the verbs but set nothing: typing errors, mostly."""
    known = {name for verb in verbs for flag in verb.flags for name in verb.variables(flag)}
    prefixes = tuple(verb.prefix for verb in verbs)
    return sorted(name for name in environment if name.startswith(prefixes) and name not in known)


def check_variables(verb: Verb, verbs: Sequence[Verb], environment: Mapping[str, str]) -> list[str]:
    """Those that are `verb`'s by their prefix, of all `verbs`, and resemble none of its flags: others may have set
    them for purposes of their own. Raises UserError for one that is a typing error, as for a key of a file."""
    strange = [name for name in unused_variables(verbs, environment) if _owner(name, verbs) == verb]
    known = {name.removeprefix(verb.prefix): name for flag in verb.flags for name in verb.variables(flag)}
    for name in strange:
        meant = difflib.get_close_matches(name.removeprefix(verb.prefix), known, 1, _ALIKE)
        if meant:
            raise UserError(f"the variable {name} sets nothing; did you mean {known[meant[0]]}?")
    return strange


def _owner(name: str, verbs: Sequence[Verb]) -> Verb:
    return max((verb for verb in verbs if name.startswith(verb.prefix)), key=lambda verb: len(verb.prefix))


def _from_environment(verb: Verb, flag: Flag, environment: Mapping[str, str]) -> Setting | None:
    for name in verb.variables(flag):
        if text := environment.get(name):  # an empty one counts as not set
            return Setting(flag, _listed(name, text) if flag.repeatable else text, name)
    return None


def _from_file(verb: Verb, flag: Flag, file: SettingsFile | None) -> Setting | None:
    tables = (verb.table, COMMON_TABLE) if flag.common else (verb.table,)
    for table in tables:
        if file is not None and (entry := file.get(table, flag.key)) is not None:
            return Setting(flag, entry.value, f"{file.place(table, flag.key)} [{table}] {flag.key}")
    return None


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
