"""Every group of verbs: what it takes before a subcommand, the subcommand takes as well."""

import click
import pytest

from tpiedge.cli.main import cli


def groups(command, words=()):
    if isinstance(command, click.Group):
        if words:
            yield words, command
        for name, child in command.commands.items():
            yield from groups(child, (*words, name))


cli.load_all()
GROUPS = dict(groups(cli))
#: Flags of what a group does without a subcommand.
OWN = {("nodes",): {"--all"}}


def flags(command):
    return {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_a_flag_of_a_group_is_one_of_its_subcommands_and_their_help_shows_it(words):
    group = GROUPS[words]
    shared = flags(group) - OWN.get(words, set())
    for name, child in group.commands.items():
        assert shared <= flags(child), name
        shown = child.get_help(click.Context(child, info_name=name))
        assert all(flag in shown for flag in shared), name
