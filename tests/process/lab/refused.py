"""Verbs that refuse what they are given: in this process, for to start one takes a second."""

from typing import NoReturn

import click
import pytest

from tpiedge.cli.main import cli, usage_words
from tpiedge.errors import TpiedgeError


def refusal(*arguments: object) -> tuple[int, str]:
    """The exit status of `tpiedge ARGUMENTS`, and what it says on one line."""
    try:
        cli.main([str(one) for one in arguments], standalone_mode=False)
    except click.ClickException as error:
        return error.exit_code, _one_line(usage_words(error))
    except TpiedgeError as error:
        return error.exit_code, _one_line(str(error))
    return _not_refused(arguments)


def _one_line(words: str) -> str:
    assert "\n" not in words
    return words


def _not_refused(arguments: tuple[object, ...]) -> NoReturn:
    pytest.fail(f"not refused: {arguments}")
