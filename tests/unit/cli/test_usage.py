import click
import pytest

from tpiedge.cli.options import Number, usage_words

_RUN = click.Command(
    "run",
    params=[
        click.Option(["--workers"], type=click.IntRange(0, 126)),
        click.Option(["--seed"], type=click.IntRange(min=1)),
        click.Option(["--temperature"], type=float),
        click.Option(["--top-p"], type=Number(0, 1)),
        click.Option(["--model"]),
        click.Option(["--nodes"]),
    ],
)
_SHELL = click.Argument(["shell"], type=click.Choice(["bash", "zsh"]))
_COMMANDS = [
    click.Command("complete", params=[_SHELL]),
    click.Command("ls", params=[click.Argument(["name"])]),
]
_GROUP = click.Group("tpiedge", commands=_COMMANDS)
_WORKERS = "is not a whole number: give one from 0 to 126"


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (_RUN, "--workers x", f"Invalid value for '--workers': 'x' {_WORKERS}"),
        (_RUN, "--seed x", "Invalid value for '--seed': 'x' is not a whole number: give one from 1"),
        (_RUN, "--temperature hot", "Invalid value for '--temperature': 'hot' is not a number"),
        (_RUN, "--top-p x", "Invalid value for '--top-p': 'x' is not a number: give one from 0 to 1"),
        (_RUN, "--top-p nan", "Invalid value for '--top-p': nan is not a number"),
        (_RUN, "--modl x", "No such option '--modl'. Did you mean '--model'?"),
        (_RUN, "--zebra", "No such option '--zebra': 'tpiedge --help' shows what there is"),
        (_RUN, "x", "Got unexpected extra argument (x): 'tpiedge --help' shows what there is"),
        (_GROUP, "lss", "No such command 'lss'. Did you mean 'ls'?"),
        (_GROUP, "zebra", "No such command 'zebra': 'tpiedge --help' shows what there is"),
        (_GROUP, "complete", "Missing argument '{bash|zsh}'. Choose from: bash, zsh"),
        (_GROUP, "ls", "Missing argument 'NAME'."),
    ],
)
def test_words(command: click.Command, arguments: str, words: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        command.main(arguments.split(), "tpiedge", standalone_mode=False)
    assert " ".join(usage_words(raised.value).split()) == words  # as they are printed
