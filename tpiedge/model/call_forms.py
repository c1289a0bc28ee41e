"""The forms in which models write calls of tools. Pure.

- `hermes` (Hermes, Qwen): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several of them;
- `llama3`: `{"name": ..., "parameters": {...}}` as the whole answer, `;` between several, maybe after `<|python_tag|>`;
- `mistral` (until 2024): `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`;
- `mistral-args` (since then): `[TOOL_CALLS]name[ARGS]{...}`, several of them, maybe with `[CALL_ID]` and an id before
  `[ARGS]`;
- `qwen-xml` (Qwen3-Coder, Qwen3.5), each tag on a line of its own, and values that are no texts in JSON:
  `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`;
- `deepseek-v3` (V3, R1) and `deepseek-v31`, within `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`:
  `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a line with three backquotes and `json`, a line with `{...}`, three
  backquotes and `<｜tool▁call▁end｜>`, or `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`.
"""

import hashlib
import string
from dataclasses import dataclass
from typing import Final, Literal

_ID_MARKS: Final = string.ascii_letters + string.digits

CallForm = Literal[
    "", "hermes", "llama3", "mistral", "mistral-args", "qwen-xml", "deepseek-v3", "deepseek-v31"
]
"""How calls are written; "": not at all."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """What surrounds the calls of a form. `openers`: each may begin a call, and the last one begins each call of a
    model that was taught the form; `bare`: how the answer may begin a call without one; `inner`: what is within a
    call; `closers`: what may follow it and says nothing."""

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare: str = ""

    @property
    def separating(self) -> tuple[str, ...]:
        """Where one of them is a special token, it must not be left out of the text."""
        return *self.openers, *self.closers, *self.inner


_DEEPSEEK: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_ENDS: Final = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
CALL_MARKS: Final[dict[CallForm, CallMarks]] = {
    "hermes": CallMarks(("<tool_call>",), ("</tool_call>",)),
    "llama3": CallMarks(("<|python_tag|>",), (";",), bare="{"),
    "mistral": CallMarks(("[TOOL_CALLS]",), bare="["),
    "mistral-args": CallMarks(("[TOOL_CALLS]",), inner=("[CALL_ID]", "[ARGS]")),
    "qwen-xml": CallMarks(("<function=", "<tool_call>"), ("</tool_call>",)),
    "deepseek-v3": CallMarks(_DEEPSEEK, ("```", *_DEEPSEEK_ENDS), ("<｜tool▁sep｜>",)),
    "deepseek-v31": CallMarks(_DEEPSEEK, _DEEPSEEK_ENDS, ("<｜tool▁sep｜>",)),
}


def call_form(template: str) -> CallForm:
    """How a chat template, which shows tools to its model, has it write calls; "" where that is not known here."""
    if _DEEPSEEK[-1] in template:
        return "deepseek-v3" if "```json" in template else "deepseek-v31"
    if "<function=" in template:
        return "qwen-xml" if "<parameter=" in template else ""
    if "<arg_key>" in template:
        return ""
    if "[ARGS]" in template:
        return "mistral-args"
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    return "llama3" if '"parameters":' in template else ""


def short_call_id(seed: str) -> str:
    """The id of a call, the same for the same `seed`, in the nine letters and digits that Mistral's templates want."""
    digest = hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return "".join(_ID_MARKS[byte % len(_ID_MARKS)] for byte in digest)
