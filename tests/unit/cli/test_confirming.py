"""A deletion is confirmed, or it is said why it was not."""

import click
import pytest

from tpiedge.cli.models import rm
from tpiedge.errors import UserError


@pytest.mark.parametrize(("end", "expected"), [(KeyboardInterrupt, click.Abort), (EOFError, UserError)])
def test_an_interrupt_is_not_an_input_that_has_ended(tmp_path, monkeypatch, capsys, end, expected):
    """Standard input is no terminal here. What is said at the end has a line of its own."""

    def ask(_prompt):
        raise end

    monkeypatch.setattr("tpiedge.cli.models.packs_of", lambda *_: [tmp_path / "packs" / "one"])
    monkeypatch.setattr("click.termui.visible_prompt_func", ask)
    with pytest.raises(expected):
        rm.main(["demo", "--cache", str(tmp_path)], standalone_mode=False)
    assert capsys.readouterr().err.endswith("one\n\n")
