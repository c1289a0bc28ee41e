"""Requests of other APIs become chats of OpenAI's: what one of these can do, the others can."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tpiedge.api.answer_grammar import CONSTRAINTS, UNKNOWN_CONSTRAINTS
from tpiedge.api.asked import Asked, FormatName
from tpiedge.api.chat_request import read_chat
from tpiedge.api.documents import document_text, file_text, search_result_text
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields, needed
from tpiedge.api.service import Service

Chat = dict[str, object]
"""The JSON of a chat request."""

MAX_PARTS = 4096
"""Of an array of messages, or of the parts of one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests of one form become chats. `names`: of a chat's fields, what they are called there; `ignored`: fields
    that have no effect."""

    form: FormatName
    names: Mapping[str, str]
    ignored: Sequence[str]

    def asked(
        self,
        chat: Chat,
        fields: BodyFields,
        service: Service,
        name: str,
        *,
        stream: bool,
        read: Callable[[Chat, Service, str], Asked] = read_chat,
    ) -> Asked:
        """What `chat` asks for, as `read` does, with an answer of that name. `fields`: of the request that it was made
        of, of which everything else was read. Raises ApiError."""
        _pass_constraints(fields, chat, self.names)
        fields.ignore(self.ignored)
        fields.overlook()
        try:
            found = read({"model": service.model().name, **chat}, service, name)
        except ApiError as error:
            raise renamed(error, self.names) from None
        grammar = self.names.get(found.reply.grammar, found.reply.grammar)
        reply = replace(found.reply, format=self.form, stream=stream, grammar=grammar)
        ignored = (_renamed_place(place, self.names) for place in found.ignored)
        return replace(found, reply=reply, ignored=tuple(dict.fromkeys((*fields.ignored, *ignored))))


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """The error in the words of the request."""
    for ours, theirs in names.items():
        error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
        error.param = theirs if error.param == ours else error.param
    return error


def _renamed_place(place: str, names: Mapping[str, str]) -> str:
    """A place within a field, in the words of the request."""
    ours = max((name for name in names if place.startswith(f"{name}.")), key=len, default="")
    return names[ours] + place.removeprefix(ours) if ours else place


def _pass_constraints(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> None:
    """What a request says of its answer in the words of a chat is never ignored. Raises ApiError where it says that in
    its own words, too, and not the same."""
    fields.unsupported(UNKNOWN_CONSTRAINTS)
    for key in CONSTRAINTS:
        value = fields.raw(key)
        if value is None:
            continue
        if chat.get(key, value) != value:
            theirs = names.get(key, key)
            why = f"'{key}' and '{theirs}' both say what the answer must be, and not the same: give one"
            raise refused(why, key)
        chat[key] = value


def copied(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> None:
    """Those of the fields that are given go into `chat`, which has another name for each; it is checked there."""
    for theirs, ours in names.items():
        value = fields.raw(theirs)
        if value is not None:
            chat[ours] = value


def objects(fields: BodyFields, key: str, value: object) -> Sequence[BodyFields]:
    """The objects of the array `value`, which is that of `key`. Raises ApiError."""
    if not isinstance(value, list):
        raise fields.wrong_type(key, "an array", value)
    if len(value) > MAX_PARTS:
        name = fields.name(key)
        raise refused(f"'{name}' has {len(value)} entries: at most {MAX_PARTS}", name)
    found = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise fields.wrong_type(f"{key}[{index}]", "an object", item)
        found.append(fields.inner(item, f"{key}[{index}]"))
    return found


def text_parts(fields: BodyFields, key: str, kinds: Sequence[str]) -> str:
    """A string, or the texts of an array of parts, each of one of the `kinds`, as one. Raises ApiError."""
    value = fields.raw(key)
    if isinstance(value, str):
        return value
    return "\n".join(_text(part, kinds) for part in objects(fields, key, value))


def _text(part: BodyFields, kinds: Sequence[str]) -> str:
    kind = part.text("type")
    if kind not in kinds:
        name = part.name("type")
        raise refused(f"'{name}' must be '{kinds[0]}': only text is read here", name, "unsupported_value")
    part.ignore(("cache_control", "citations"))
    match kind:
        case "document":
            text = document_text(part)
        case "search_result":
            text = search_result_text(part)
        case "input_file":
            text = file_text(part)
        case "refusal":
            text = needed(part, "refusal")
        case _:
            text = needed(part, "text")
    part.overlook()
    return text
