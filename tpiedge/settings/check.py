"""What is wrong with a settings file: unknown tables and keys, values of the wrong type."""

import difflib
from collections.abc import Iterable, Iterator, Sequence

from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.settings.file import Entry, SettingsFile
from tpiedge.settings.schema import COMMON, COMMON_TABLE, Flag, Verb, takes


def check_settings(file: SettingsFile, verbs: Iterable[Verb]) -> None:
    """Raises UserError with the first problem."""
    first, *others = [*problems(file, verbs), ""]
    if first:
        more = f" (and {len(others) - 1} more: tpiedge config check {file.path})" if len(others) > 1 else ""
        raise UserError(first + more)


def problems(file: SettingsFile, verbs: Iterable[Verb]) -> Iterator[str]:
    """Every problem as a line that names the place, the key and, where one is near, the known key."""
    flags_of = {verb.table: {flag.key: flag for flag in verb.flags} for verb in verbs}
    flags_of[COMMON_TABLE] = {key: _common_flag(key, flags_of.values()) for key in COMMON}
    for table, entries in file.tables.items():
        if not table:
            yield from (_outside(file, key, list(flags_of)) for key in entries)
        elif (flags := flags_of.get(table)) is None:
            yield f"{file.place(table)}: there is no table [{_shown(table)}]{nearest(table, list(flags_of))}"
        else:
            for key, entry in entries.items():
                yield from _entry_problems(file, table, key, entry, flags)


def nearest(name: str, known: Sequence[str]) -> str:
    """'; did you mean nodes?', or nothing."""
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


def _shown(name: str) -> str:
    """A name that is not known: it may be anything."""
    return sanitised_line(name, 80)


def _common_flag(key: str, tables: Iterable[dict[str, Flag]]) -> Flag:
    """The flag as the verbs that have it declare it."""
    return next((flags[key] for flags in tables if key in flags), Flag(key))


def _outside(file: SettingsFile, key: str, tables: Sequence[str]) -> str:
    place = file.place("", key)
    if key in tables:
        return f"{place}: {key} is a table: write [{key}]"
    return f"{place}: {_shown(key)} stands before the first table: put it below one, like [run]"


def _entry_problems(
    file: SettingsFile, table: str, key: str, entry: Entry, flags: dict[str, Flag]
) -> Iterator[str]:
    place, flag = file.place(table, key), flags.get(key)
    if flag is None:
        yield f"{place}: [{table}] has no key {_shown(key)}{nearest(key, list(flags))}"
    elif not takes(flag, entry.value):
        found = type(entry.value).__name__
        yield f"{place}: {key} in [{table}] must be {flag.wanted}, not {_TYPES.get(found, found)}"


_TYPES = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
}
