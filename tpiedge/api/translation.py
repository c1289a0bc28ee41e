"""Requests of other APIs become chats of OpenAI's: what one of these can do, the others can."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tpiedge.api.answer_grammar import CONSTRAINTS
from tpiedge.api.asked import Asked, FormatName
from tpiedge.api.chat_request import read_chat
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service

Chat = dict[str, object]
"""The JSON of a chat request."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests of one form become chats. `names`: what they call a chat's fields that they have by another name."""

    form: FormatName
    names: Mapping[str, str]

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
        of. Raises ApiError."""
        names = _pass_constraints(fields, chat, self.names)
        try:
            found = read({"model": service.model().name, **chat}, service, name)
        except ApiError as error:
            for ours, theirs in names.items():
                error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
                error.param = theirs if error.param == ours else error.param
            raise
        grammar = names.get(found.reply.grammar, found.reply.grammar)
        reply = replace(found.reply, format=self.form, stream=stream, grammar=grammar)
        ignored = (_renamed_place(place, names) for place in found.ignored)
        return replace(found, reply=reply, ignored=tuple(dict.fromkeys((*fields.ignored, *ignored))))


def _renamed_place(place: str, names: Mapping[str, str]) -> str:
    """A place within a field, in the words of the request."""
    ours = max((name for name in names if place.startswith(f"{name}.")), key=len, default="")
    return names[ours] + place.removeprefix(ours) if ours else place


def _pass_constraints(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> Mapping[str, str]:
    """What a request says of its answer in the words of a chat is never ignored. Returns the names without those of
    fields that the request calls as a chat does. Raises ApiError where it says the same in its own words, too, and not
    the same."""
    for key in CONSTRAINTS:
        value = fields.raw(key)
        if value is None:
            continue
        theirs = names.get(key, key)
        if chat.get(key, value) != value:
            why = f"'{key}' and '{theirs}' both say what the answer must be, and not the same: give one"
            raise refused(why, key)
        if key not in chat:
            names = {ours: own for ours, own in names.items() if ours.partition(".")[0] != key}
        chat[key] = value
    return names


def copied(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> None:
    """Those of the fields that are given go into `chat`, which has another name for each."""
    for theirs, ours in names.items():
        value = fields.raw(theirs)
        if value is not None:
            chat[ours] = value
