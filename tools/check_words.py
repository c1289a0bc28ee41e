"""Shows the docstrings and comments that a reader would read twice, a line each: python -m tools.check_words

`tests/unit/test_budget.py` bounds how many there may be.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("tpiedge", "tools", "tests")

#: First words of a docstring that has no subject: pronouns, prepositions, question words. A predicate may begin with
#: "Whether".
DENIED_FIRST: Final = re.compile(
    r"(after|as|at|because|before|both|by|for|from|he|how|if|in|its?|like|none|nobody|not|of|on|one's|so|such|than|that|"
    r"theirs?|them|these|they|this|those|though|to|under|until|what|whatever|when|where|whether|which|while|who|whoever|"
    r"whole|whose|why|with|without)[,.:]?",
    re.IGNORECASE,
)
DENIED: Final = re.compile(
    r"\b(whoever|nobody|such that are|(?-i:is none)|of these|what is no)\b", re.IGNORECASE
)
FIRST_WORD, DENIED_PHRASE, LENGTH = ("denied first word", "denied phrase", "length beyond its limit")
WORDS: Final[Mapping[type[ast.AST], int]] = {
    ast.Module: 120,
    ast.ClassDef: 120,
    ast.FunctionDef: 40,
    ast.AsyncFunctionDef: 40,
}
Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


def main() -> int:
    places = [place for path in _files() for place in check(path.read_text(), str(path.relative_to(ROOT)))]
    for place in places:
        print(place)
    return 1 if places else 0


def words() -> int:
    """Returns how many words the docstrings of tpiedge have."""
    return sum(len(text.split()) for path in _files("tpiedge") for _, text in _docstrings(path.read_text()))


def check(source: str, file: str) -> Iterator[Place]:
    """Yields every place of a module that breaks a rule."""
    for node, text in _docstrings(source):
        words = text.split()
        line = node.body[0].lineno
        start = text.partition(".")[0][:80]
        if DENIED_FIRST.fullmatch(words[0]) and not (words[0] == "Whether" and _is_predicate(node)):
            yield Place(file, line, FIRST_WORD, start)
        if len(words) > WORDS[type(node)] and not _is_help(node, source):
            yield Place(file, line, LENGTH, f"{len(words)}: {start}")
        for phrase in DENIED.findall(text):
            yield Place(file, line, DENIED_PHRASE, phrase)
    if not DENIED.search(source):  # to split every module into tokens takes seconds
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for phrase in DENIED.findall(token.string):
                yield Place(file, token.start[0], DENIED_PHRASE, phrase)


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))


def _docstrings(source: str) -> Iterator[tuple[Documented, str]]:
    found: list[ast.AST] = [ast.parse(source)]
    for node in found:
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text
        # Statements alone hold definitions: expressions are most of a tree.
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            inner = getattr(node, field, [])
            found += inner if isinstance(inner, list) else []


def _is_help(node: ast.AST, source: str) -> bool:
    """Whether a command prints the docstring as its help."""
    if isinstance(node, ast.Module):
        return "description=__doc__" in source
    calls = [one for one in getattr(node, "decorator_list", []) if isinstance(one, ast.Call)]
    return any(getattr(call.func, "attr", "") in ("command", "group") for call in calls)


def _is_predicate(node: ast.AST) -> bool:
    returned = getattr(node, "returns", None)
    return isinstance(returned, ast.Name) and returned.id == "bool"


if __name__ == "__main__":
    sys.exit(main())
