import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpiedge.cli.conversation import Screen, WordWrap
from tpiedge.cli.terminal import ChatHistory
from tpiedge.errors import UserError

_BACK = re.compile(r"\x1b\[(\d+)D\x1b\[K")


def screen(written: str) -> list[str]:
    lines = [""]
    at = 0
    while at < len(written):
        back = _BACK.match(written, at)
        if back:
            assert int(back[1]) <= len(lines[-1])
            lines[-1] = lines[-1][: -int(back[1])]
            at = back.end()
        elif written[at] == "\n":
            lines.append("")
            at += 1
        else:
            lines[-1] += written[at]
            at += 1
    return lines


def shown(text: str, columns: int, pieces: int = 1) -> list[str]:
    wrap = WordWrap(columns, lambda _mark: 1)
    return screen("".join(wrap.push(text[at : at + pieces]) for at in range(0, len(text), pieces)))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two ", "three"]),
        ("one two  ", ["one two  "]),
        ("one two six", ["one two ", "six"]),
        ("abcdefghijklmno", ["abcdefghi", "jklmno"]),  # longer than a line
        ("ab cdefghijklmno", ["ab ", "cdefghijk", "lmno"]),
        ("one\ntwo\n\nsix", ["one", "two", "", "six"]),
        ("a\tb", ["a    b"]),
        ("123456789 next", ["123456789", "next"]),  # the edge parts them
        ("", [""]),
    ],
)
def test_lines_wrap_between_words(text: str, lines: list[str]) -> None:
    for pieces in (1, 2, 100):
        assert shown(text, 10, pieces) == lines


def test_wide_characters_take_two_columns() -> None:
    wrap = WordWrap(6, lambda mark: 2 if mark == "語" else 1)
    assert screen(wrap.push("語語 語語")) == ["語語 ", "語語"]


@pytest.mark.parametrize(("columns", "lines"), [(0, 3), (80, 3), (20, 10)])
def test_terminal_of_unknown_size_has_80_columns(
    columns: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = SimpleNamespace(isatty=lambda: True, fileno=lambda: 1)
    monkeypatch.setattr("tpiedge.cli.conversation.sys", SimpleNamespace(stdout=output))
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((columns, 0)))
    shown_on = Screen()
    for _ in range(30):
        shown_on.show("words ")
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_text_written_to_a_file_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().show("a\x1b[2J" + "b " * 100 + "\n")
    assert capsys.readouterr().out == "a [2J" + "b " * 100 + "\n"


def test_history_is_private_and_is_found_by_the_next_chat(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat-history"
    first = ChatHistory(path)
    first.store_string("one\ntwo")
    first.keep(False)
    first.store_string("secret")
    first.keep(True)
    first.store_string("not \udcff UTF-8")
    kept = path.read_bytes()
    path.unlink()
    first.store_string("three")
    assert path.stat().st_mode & 0o777 == 0o600, "made anew, it is private, too"
    path.write_bytes(kept)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(ChatHistory(path).load_history_strings()) == ["not ? UTF-8", "one\ntwo"]


def test_oldest_messages_of_a_long_history_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    first = ChatHistory(path)
    for number in range(50):
        first.store_string(f"{number}\n# {'x' * 100_000}")
    found = ChatHistory(path)
    kept = [text.split("\n")[0] for text in found.load_history_strings()]
    assert (found.problem, kept) == ("", [str(number) for number in range(49, 28, -1)])
    first.store_string("y" * 5_000_000)
    assert [len(text) for text in ChatHistory(path).load_history_strings()] == [5_000_000]
    assert path.stat().st_mode & 0o777 == 0o600


def test_unusable_history_is_explained_and_a_chat_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    path.touch()
    path.chmod(0o644)
    history = ChatHistory(path)
    assert "no history of chats is kept" in history.problem
    assert f"chmod 600 {path}" in history.problem
    history.store_string("hi")
    assert (path.read_text(), list(history.load_history_strings())) == ("", [])
    with pytest.raises(UserError, match="chmod 600"):
        history.keep(True)
    path.unlink()
    history.keep(True)
    path.unlink()
    path.mkdir()  # as a full disk, it refuses what is written
    history.store_string("hi")
    assert f"cannot write {path}: Is a directory" in history.problem
