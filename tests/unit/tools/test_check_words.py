import pytest

from tools.check_words import DENIED_PHRASE, FIRST_WORD, LENGTH, check

LONG = " ".join(["word"] * 41)


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('"""Reads a file."""', []),
        ('"""Of what is read."""', [FIRST_WORD]),
        ('def f() -> bool:\n    """Whether it is read."""', []),
        ('def f() -> int:\n    """Whether it is read."""', [FIRST_WORD]),
        ('class A:\n    """Reads, for it, or nobody."""', [DENIED_PHRASE]),
        ("x = 1  # whoever reads it", [DENIED_PHRASE]),
        (f'def f():\n    """{LONG}"""', [LENGTH]),
        (f'"""{LONG}"""', []),
        (f'@click.command()\ndef f():\n    """{LONG}"""', []),
        (f'"""{LONG * 3}"""', [LENGTH]),
        (f'"""{LONG * 3}"""\nprint(description=__doc__)', []),
    ],
)
def test_check_reports_the_broken_rules(source: str, rules: list[str]) -> None:
    assert [place.rule for place in check(source + "\n", "file.py")] == rules
