"""What is wrong with a command line is said as people say it."""

import click
import pytest

from tpiedge.cli.types import Number, usage_words


@click.command()
@click.option("--workers", type=click.IntRange(0, 126))
@click.option("--seed", type=click.IntRange(min=1))
@click.option("--context", type=int)
@click.option("--temperature", type=float)
@click.option("--top-p", type=Number(0, 1))
@click.option("--pin", type=click.Choice(["none", "all"]))
@click.option("--model")
@click.option("--nodes")
def _command(**_flags: object) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--workers", "x"],
            "Invalid value for '--workers': 'x' is not a whole number: give one from 0 to 126",
        ),
        (
            ["--workers", "1.5"],
            "Invalid value for '--workers': '1.5' is not a whole number: give one from 0 to 126",
        ),
        (["--seed", "x"], "Invalid value for '--seed': 'x' is not a whole number: give one from 1"),
        (["--context", "1e9"], "Invalid value for '--context': '1e9' is not a whole number"),
        (["--temperature", "hot"], "Invalid value for '--temperature': 'hot' is not a number"),
        (["--top-p", "x"], "Invalid value for '--top-p': 'x' is not a number: give one from 0 to 1"),
        (["--pin", "x"], "Invalid value for '--pin': 'x' is not one of 'none', 'all'."),
        (["--modl", "x"], "No such option '--modl'. Did you mean '--model'?"),
        (["--zebra"], "No such option '--zebra': 'tpiedge --help' shows what there is"),
        (["x"], "Got unexpected extra argument (x): 'tpiedge --help' shows what there is"),
    ],
    ids=" ".join,
)
def test_words(arguments: list[str], words: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        _command.main(arguments, "tpiedge", standalone_mode=False)
    assert usage_words(raised.value) == words


@click.group()
def _group() -> None:
    pass


@_group.command("complete")
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
def _complete(shell: str) -> None:
    pass


@_group.command("ls")
@click.argument("name")
def _ls(name: str) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lss"], "No such command 'lss'. Did you mean 'ls'?"),
        (["zebra"], "No such command 'zebra': 'tpiedge --help' shows what there is"),
        (["complete"], "Missing argument '{bash|zsh}'. Choose from: bash, zsh"),
        (["ls"], "Missing argument 'NAME': 'tpiedge ls --help' shows what there is"),
    ],
    ids=" ".join,
)
def test_words_about_a_group(arguments: list[str], words: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        _group.main(arguments, "tpiedge", standalone_mode=False)
    assert " ".join(usage_words(raised.value).split()) == words  # as they are printed
