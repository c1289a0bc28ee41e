"""Grammars of requests that are to come, or that come from an earlier epoch."""

from dataclasses import replace

from tpiedge.engine.grammar_preparation import GrammarPreparations
from tpiedge.wire.requests import GenerationRequest, Grammar

ASKED = GenerationRequest("r-1", (1,), 9, grammar=Grammar("regex", "a*"), scope="ann")


def group_of(request: GenerationRequest, *, compiled_as: str = "") -> str:
    """The group with which its grammar is begun once it has come; `compiled_as`: that of its Compile, if one came."""
    groups: list[str] = []

    def begin(_request: GenerationRequest, group: str) -> None:
        groups.append(group)

    preparations = GrammarPreparations(1, begin)
    if compiled_as:
        preparations.add(request, compiled_as)
    assert preparations.take(request) is None
    (group,) = groups
    return group


def test_what_an_earlier_epoch_began_shares_equal_grammars() -> None:
    """So that an answer of many choices pauses for one compilation; those of another client's tell nothing."""
    own = group_of(ASKED)
    assert own
    assert group_of(replace(ASKED, id="r-2", prompt_ids=(2, 3))) == own
    begun = group_of(replace(ASKED, answer_ids=(5,)))
    assert begun == group_of(replace(ASKED, answer_ids=(6, 7)))
    others = [
        group_of(replace(ASKED, scope="bob")),
        group_of(replace(ASKED, grammar=Grammar("lark", "a*"))),
        begun,  # which has more time
    ]
    assert len({own, *others}) == 4


def test_a_grammar_that_was_compiled_before_is_not_begun_again() -> None:
    assert group_of(ASKED, compiled_as="told") == "told"
