"""Reads tool calls after their opening mark while the model writes them. Pure. Forms of calls:

- `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`;
- `llama3`: `{"name": ..., "parameters": {...}}; ...`;
- `mistral`: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`;
- `mistral-args`: `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`;
- `qwen-xml`, in lines: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`;
- `deepseek-v31`: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`;
- `deepseek-v3`: between the same marks, `function<｜tool▁sep｜>name` and a code block of arguments;
- `harmony`: see `harmony.py`.

Laws:
1. Text becomes a call once it names a tool and begins an object of arguments.
2. The joined arguments of a whole call are a JSON object. Arguments that the model writes in JSON stay unchanged.
3. Only text that may begin a mark is held back.
"""

import hashlib
import json
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tpiedge.model.held_text import SPACE, HeldText, JsonScan, Mismatch, Waiting, begun_length

_ID_MARKS: Final = string.ascii_letters + string.digits

CallForm = Literal[
    "", "hermes", "llama3", "mistral", "mistral-args", "qwen-xml", "deepseek-v3", "deepseek-v31", "harmony"
]
"""The form in which a model writes calls; "" if it writes none."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """Marks of a form. Each of `openers` begins a call. Grammars use the last opener, because models of the form
    write it. At an answer's beginning, the mark `bare` also begins a call. `inner` marks are within a call.
    `closers` follow a call."""

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare: str = ""

    @property
    def separating(self) -> tuple[str, ...]:
        """The marks that decoding must show, even if they are special tokens."""
        return *self.openers, *self.closers, *self.inner


_DEEPSEEK: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_SEPARATOR: Final = "<｜tool▁sep｜>"
_DEEPSEEK_ENDS: Final = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
CALL_MARKS: Final[dict[CallForm, CallMarks]] = {
    "hermes": CallMarks(("<tool_call>",), ("</tool_call>",)),
    "llama3": CallMarks(("<|python_tag|>",), (";",), bare="{"),
    "mistral": CallMarks(("[TOOL_CALLS]",), bare="["),
    "mistral-args": CallMarks(("[TOOL_CALLS]",), inner=("[CALL_ID]", "[ARGS]")),
    "qwen-xml": CallMarks(("<function=", "<tool_call>"), ("</tool_call>",)),
    "deepseek-v3": CallMarks(_DEEPSEEK, ("```", *_DEEPSEEK_ENDS), (_SEPARATOR,)),
    "deepseek-v31": CallMarks(_DEEPSEEK, _DEEPSEEK_ENDS, (_SEPARATOR,)),
    "harmony": CallMarks(
        ("<|channel|>",), ("<|end|>", "<|call|>", "<|return|>"), ("<|start|>", "<|constrain|>", "<|message|>")
    ),
}
#: (Marks, the form that a template with all these marks teaches); the first match counts.
_TAUGHT: Final[tuple[tuple[tuple[str, ...], CallForm], ...]] = (
    (("<|start|>", "<|channel|>", "<|message|>"), "harmony"),
    ((_DEEPSEEK[-1], "```json"), "deepseek-v3"),
    ((_DEEPSEEK[-1],), "deepseek-v31"),
    (("<function=", "<parameter="), "qwen-xml"),
    (("<function=",), ""),
    (("<arg_key>",), ""),
    (("[ARGS]",), "mistral-args"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (('"parameters":',), "llama3"),
)


def call_form(template: str) -> CallForm:
    """Returns the form that a chat template teaches, or "" if the form is unknown."""
    return next((form for marks, form in _TAUGHT if all(mark in template for mark in marks)), "")


def short_call_id(seed: str) -> str:
    """Returns an id of nine letters and digits, for Mistral's templates."""
    digest = hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return "".join(_ID_MARKS[byte % len(_ID_MARKS)] for byte in digest)


MAX_HEAD: Final = 256  # characters before a call's arguments
_MAX_VALUE: Final = 1 << 20  # characters of a value that is not a text
_PARAMETER_END: Final = "</parameter>"
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class ReadTool:
    """A tool. `texts`: its string parameters, for forms that write strings without quotes."""

    name: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallBegun:
    index: int  # from 0
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str  # the next part, never empty


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a call. `arguments` joins the parts. `broken` is the raw text of an unfinished call."""

    index: int
    broken: str = ""
    name: str = ""
    arguments: str = ""


class _UnknownTool(Mismatch):
    """A whole call of an unknown tool."""


class CallReader(ABC):
    """Reads the calls of one answer. Without `several`, it reports only the first call."""

    def __init__(self, form: CallForm, tools: Sequence[ReadTool], several: bool) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._several = several
        self._held = HeldText()
        self._parts: list[Any] = []
        self._inside = False
        self._name = ""
        self._argued: list[str] = []
        self.calls = 0  # begun
        self.broken = 0  # reported and unfinished

    @abstractmethod
    def _emit_text(self, text: str, *, reasoning: bool = False) -> None:
        """Reports text outside calls."""

    def _read_call(self, opener: str) -> Waiting[None]:
        """Reads the call after `opener`. Raises Mismatch unless the call is whole."""
        try:
            if self._form == "mistral":
                yield from self._list()
            elif self._form == "qwen-xml":
                yield from self._tagged(opener)
            elif self._form in ("hermes", "llama3"):
                yield from self._envelope()
            else:
                yield from self._named(opener)
        except Mismatch:
            if self._inside:
                self._end(self._held.raw)
            raise

    def _begin(self, name: str) -> None:
        self._inside, self._name, self._argued = True, name, []
        self.calls += 1
        self._emit_call(CallBegun(self.calls - 1, name))

    def _argue(self, text: str) -> None:
        if text:
            self._argued.append(text)
            self._emit_call(CallArguments(self.calls - 1, text))

    def _end(self, broken: str = "") -> None:
        self._emit_call(CallEnded(self.calls - 1, broken, self._name, "".join(self._argued)))
        self._inside = False
        self._held.raw = ""

    def _emit_call(self, part: CallBegun | CallArguments | CallEnded) -> None:
        if self._several or self.calls == 1:
            self._parts.append(part)
            self.broken += isinstance(part, CallEnded) and part.broken != ""

    def _envelope(self) -> Waiting[None]:
        """Reads {"name": ..., "arguments": {...}}, in any order."""
        held, name, written = self._held, None, None
        yield from held.expect("{")
        mark = ","
        while mark == ",":
            yield from held.spaces()
            key = json.loads((yield from self._value('"')))
            yield from held.expect(":")
            yield from held.spaces()
            if key == "name" and name is None:
                name = json.loads((yield from self._value('"')))
                if written is not None and name in self._tools:
                    self._whole(name, written)
                    written = ""
            elif key not in ("arguments", "parameters") or written is not None:
                yield from self._value()
            elif name in self._tools and held.text.startswith("{"):
                yield from self._object(name)
                written = ""
            elif name in self._tools:
                self._whole(name, (yield from self._value('"', "n")))
                written = ""
            else:
                written = yield from self._value()
            mark = yield from held.expect(",", "}")
        # A call of another tool is read to its end, so that no text within it is taken for a call.
        if name is None:
            raise Mismatch
        if name not in self._tools:
            raise _UnknownTool
        if written != "":
            self._whole(name, written or "null")

    def _whole(self, name: str, written: str) -> None:
        """Reports a whole call. `written`: the call's arguments as JSON. Raises Mismatch."""
        arguments = json.loads(written) if written.startswith('"') else written
        arguments = "{}" if arguments == "null" else arguments.strip(SPACE)
        scan = JsonScan()
        if not arguments.startswith("{") or scan.feed(arguments) < len(arguments) or not scan.whole:
            raise Mismatch
        self._begin(name)
        self._argue(arguments)
        self._end()

    def _list(self) -> Waiting[None]:
        """Reads [{...}, ...]. Reports calls of unknown tools as text."""
        held, known, mark = self._held, True, ","
        yield from held.expect("[")
        while mark == ",":
            try:
                yield from self._envelope()
                known = True
            except _UnknownTool:
                known = False
                self._emit_text(held.raw)
            held.raw = ""
            mark = yield from held.expect(",", "]")
        if not known:
            raise Mismatch

    def _named(self, opener: str) -> Waiting[None]:
        """Reads name[ARGS]{...}, name<｜tool▁sep｜>{...}, or a name and a code block."""
        held, before_arguments = self._held, CALL_MARKS[self._form].inner[-1]
        if opener == _DEEPSEEK[0]:
            yield from held.expect(_DEEPSEEK[1])
        if self._form == "deepseek-v3":
            yield from held.expect("function")
            yield from held.expect(_SEPARATOR)
            before_arguments = "```json"
        written = yield from held.until(before_arguments, MAX_HEAD)
        name = written.partition("[CALL_ID]")[0].strip(SPACE)
        yield from held.spaces()
        if name not in self._tools:
            yield from self._value("{")
            raise Mismatch
        yield from self._object(name)

    def _tagged(self, opener: str) -> Waiting[None]:
        """Reads <function=name><parameter=key>value</parameter>...</function>."""
        held = self._held
        if opener != "<function=":
            yield from held.expect("<function=")
        tool = self._tools.get((yield from held.until(">", MAX_HEAD)).strip(SPACE))
        if tool is None:
            yield from held.until("</function>", _MAX_VALUE)
            raise Mismatch
        self._begin(tool.name)
        self._argue("{")
        keys: set[str] = set()
        while (yield from held.expect("<parameter=", "</function>")) == "<parameter=":
            key = (yield from held.until(">", MAX_HEAD)).strip(SPACE)
            if key in keys:
                raise Mismatch
            self._argue((", " if keys else "") + json.dumps(key, ensure_ascii=False) + ": ")
            keys.add(key)
            yield from self._parameter(key in tool.texts)
        self._argue("}")
        self._end()

    def _parameter(self, is_text: bool) -> Waiting[None]:
        held = self._held
        yield from held.one_of("\n", _PARAMETER_END)
        if held.raw.endswith(_PARAMETER_END):
            self._argue('""')
        elif is_text:
            self._argue('"')
            while (at := held.text.find(_PARAMETER_END)) < 0:
                begun = begun_length(held.text, _PARAMETER_END, f"\n{_PARAMETER_END}")
                self._argue(_escaped(held.consume(len(held.text) - begun)))
                yield from held.more()
            self._argue(_escaped(held.consume(at).removesuffix("\n")) + '"')
            held.consume(len(_PARAMETER_END))
        else:
            written = (yield from held.until(_PARAMETER_END, _MAX_VALUE)).removesuffix("\n")
            value = _PYTHON.get(written.strip(SPACE), written.strip(SPACE))
            scan = JsonScan()
            is_json = scan.feed(value) == len(value) and scan.finish()
            self._argue(value if is_json else json.dumps(written, ensure_ascii=False))

    def _object(self, name: str) -> Waiting[None]:
        if not self._held.text.startswith("{"):
            raise self._held.mismatch("{")
        self._begin(name)
        yield from self._scanned(self._argue)
        self._end()

    def _value(self, *beginnings: str) -> Waiting[str]:
        """Returns the next value as the model wrote it. Raises Mismatch unless one of `beginnings` begins it."""
        parts: list[str] = []
        if beginnings and not self._held.text.startswith(beginnings):
            raise self._held.mismatch(*beginnings)
        yield from self._scanned(parts.append)
        return "".join(parts)

    def _scanned(self, part: Callable[[str], None]) -> Waiting[None]:
        scan = JsonScan()
        while not scan.whole:
            part(self._held.consume(scan.feed(self._held.text)))
            if scan.broken:
                raise Mismatch
            if not scan.whole:
                yield from self._held.more()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
