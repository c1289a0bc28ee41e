"""The example files fit the verbs, with and without what is commented out."""

import re
from pathlib import Path

import pytest

from tpiedge.cli.configured import COMMON_TABLE, check_values, problems, verbs_of
from tpiedge.cli.main import cli
from tpiedge.cli.settings_file import parse_settings

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted(CONFIGS.glob("*.toml"))
COMMENTED = re.compile(r"^#(?=[a-z-]+ = )", re.MULTILINE)


def texts(path):
    text = path.read_text()
    return text, COMMENTED.sub("", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_examples_fit_the_verbs(path):
    verbs = verbs_of(cli)
    known = {COMMON_TABLE, *verbs}
    for text in texts(path):
        file = parse_settings(path, text)
        assert set(file.tables) <= known
        assert list(problems(file, verbs)) == []
        # Folders of the examples are not on this computer.
        assert [line for line in check_values(cli, file) if "does not exist" not in line] == []


def test_the_example_of_everything_names_real_tables_only():
    text = (CONFIGS / "tpiedge.example.toml").read_text()
    words = {*verbs_of(cli), COMMON_TABLE}
    assert set(re.findall(r"^\[(.+)\]", text, re.MULTILINE)) <= words


@pytest.mark.parametrize("table", ["run", "master", "worker"])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("4", ""),
        ('"4"', ""),
        ('"500MB"', ""),
        ("0", "0 blocks are out of range: 1 to 10000"),
        ("-1", "not a size: '-1'"),
        ("true", "window in [{table}] must be a size"),
        ("0x" + "f" * 5000, "9223372036854775808 blocks are out of range"),
    ],
    ids=lambda value: value[:8],
)
def test_a_window_is_blocks_or_a_size(table, value, complaint):
    file = parse_settings(Path("t.toml"), f"[{table}]\nwindow = {value}\n")
    found = list(problems(file, verbs_of(cli))) or list(check_values(cli, file))
    assert len(found) == bool(complaint)
    assert complaint.format(table=table) in "".join(found)


@pytest.mark.parametrize("value", ["-1", "0x" + "f" * 5000], ids=["negative", "long"])
def test_a_number_that_is_no_size(value):
    file = parse_settings(Path("t.toml"), f"[run]\nmemory = {value}\n")
    (line,) = check_values(cli, file)
    assert "t.toml:2 [run] memory: --memory: not a size" in line


def test_the_example_of_everything_shows_how_weights_are_kept():
    text = COMMENTED.sub("", (CONFIGS / "tpiedge.example.toml").read_text())
    file = parse_settings(Path("t.toml"), text)
    assert {(table, key) for table in ("run", "master", "worker") for key in ("window", "pin", "io")} <= {
        (table, key) for table, entries in file.tables.items() for key in entries
    }
