from contextlib import nullcontext
from pathlib import Path

import pytest

from tools import check_docs, make_faults, make_reference

SOURCE = """
@pytest.mark.fault("A1", "said in one line")
@pytest.mark.slow
def test_first(): ...

class TestBoth:
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.fault("A1", "left out")
    @pytest.mark.fault("B2", "served")
    def test_second(self, n): ...

def test_unmarked(): ...

@pytest.mark.fault("B2", "in any order")
class TestMachine(Machine.TestCase): ...
"""
CATALOGUE = {"Wire": {"A1": {"fault": "Garbage"}}, "HTTP": {"B2": {"fault": "Floods", "untested": "rare"}}}


def found() -> dict[str, list]:
    of: dict[str, list] = {}
    for one in make_faults.reproductions(SOURCE, "tests/test_a.py"):
        of.setdefault(one.fault, []).append(one)
    return of


def test_fault_page_has_a_row_per_mark() -> None:
    lines = make_faults.page(CATALOGUE, found()).splitlines()
    assert [line for line in lines if line.startswith(("| A", "| B", "|  "))] == [
        "| A1 | Garbage | said in one line | `pytest tests/test_a.py::test_first` |",
        "|  |  | left out | `pytest tests/test_a.py::TestBoth::test_second` |",
        "| B2 | Floods | served | `pytest tests/test_a.py::TestBoth::test_second` |",
        "|  |  | in any order | `pytest tests/test_a.py::TestMachine` |",
        "|  |  | not tested: rare |  |",
    ]


def test_a_fault_has_a_test_or_a_reason() -> None:
    with pytest.raises(ValueError, match=r"A1 has no test, and faults\.toml does not say why"):
        make_faults.page(CATALOGUE, {})


def test_made_documents_are_those_of_the_code() -> None:
    # check_docs.py compares the reference: click keeps the help option that a verb had when it was first asked for.
    made = {make_reference.FILES: make_reference.files(), **make_reference.diagrams()}
    for path, text in made.items():
        assert path.read_text() == text, "old: python -m tools.make_reference"


@pytest.mark.parametrize(("name", "text", "sentence"), [
    ("a.py", '"""Reads `b.py`,\nas v1.2. Pure.\n\nMore."""\n', "Reads `b.py`, as v1.2."),
    ("a.js", "// Shows x | y\n// now. More.\n\n// Else.\n", "Shows x | y now."),
    ("a.css", "/* Styles. */\na {}\n", "Styles."), ("a.h", "// Order:\n", "Order:"),
    ("a.py", '"""Words"""', None), ("a.cpp", "#include <x>\n// Late.\n", None),
])  # fmt: skip
def test_first_sentence_of_a_file_is_required(name: str, text: str, sentence: str | None) -> None:
    with nullcontext() if sentence else pytest.raises(ValueError, match="must begin with a sentence"):
        assert make_reference.first_sentence(text, name) == sentence


def test_every_source_of_a_package_is_listed() -> None:
    package = make_reference.ROOT / "tpiedge"
    files = {str(path.relative_to(package)) for path in package.rglob("*.py") if path.parent != package}
    listed = make_reference.files()
    assert not [name for name in files if not name.endswith("__init__.py") and f"| `{name}` |" not in listed]


def test_diagram_without_port_link_or_marker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_reference.PORTS, 7999, "files")
    assert 'agents -- "7999 files" --> master' in make_reference.processes()
    monkeypatch.setitem(make_reference.PORTS, 8000, "gossip")
    with pytest.raises(ValueError, match="no link uses gossip"):
        make_reference.processes()
    with pytest.raises(ValueError, match="this line once: <!-- part: made"):
        make_reference.filled("a page", {"part": "new"})


def test_unknown_names_in_a_diagram_are_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("""
    participant Q as RequestQueue<br/>master/request_queue.py
    participant S as Server<br/>master/session.py
    C->>Q: 1 submit(), Token
    Q-->>S: accept(), Tokens
""")
    assert [complaint.split()[3] for complaint in check_docs.check(page)] == ["Server", "accept", "Tokens"]
