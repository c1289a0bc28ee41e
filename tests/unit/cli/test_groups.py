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


def test_there_are_groups():
    assert {("nodes",), ("token",), ("shards",), ("config",), ("bench",)} <= GROUPS.keys()


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_a_flag_of_a_group_is_one_of_its_subcommands_and_their_help_shows_it(words):
    group = GROUPS[words]
    shared = flags(group) - OWN.get(words, set())
    for name, child in group.commands.items():
        assert shared <= flags(child), name
        shown = child.get_help(click.Context(child, info_name=name))
        assert all(flag in shown for flag in shared), name


@pytest.mark.parametrize("words", [(), *GROUPS], ids=" ".join)
def test_help_says_whole_sentences_about_commands(words):
    group = GROUPS[words] if words else cli
    shown = " ".join(group.get_help(click.Context(group, info_name="tpiedge")).split())
    for name, child in group.commands.items():
        assert child.hidden or f"{name} {child.get_short_help_str(1000)}" in shown
