import json
from typing import Any

import pytest

from tests.unit.model.test_template import GEMMA
from tpiedge.model.call_reader import short_call_id
from tpiedge.model.chat_prompt import GivenArguments, chat_prompt
from tpiedge.model.template import ChatTemplate, TemplateRefusal

TEXT = '{"at":  "sky"}'
LONG_ID = "toolu_01A09q90qw90lq917835lq9"
USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}


def calling(
    content: str | None = None, text: str = TEXT, identity: str = "abcdefgh1", **more: Any
) -> dict[str, Any]:
    function = {"name": "look", "arguments": GivenArguments(text, json.loads(text))}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call], **more}


def result(identity: str = "abcdefgh1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": "seen"}


def prompt(template: str | ChatTemplate, *messages: dict[str, Any], **options: Any) -> str:
    chosen = template if isinstance(template, ChatTemplate) else ChatTemplate({"default": template}, {})
    return chat_prompt(chosen, messages, tools=[TOOL], **options)


def calls(shown: str, content: str = "{{ m.content or '' }}") -> str:
    """A template that writes what `shown` says of each call `c`."""
    return (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        + shown
        + "{% endfor %}"
        + content
        + "{% endfor %}{{ '' if tools else '' }}"
    )


class TestArguments:
    """The value is parsed, so written anew; the text is as it came."""

    @pytest.mark.parametrize(
        ("shown", "wanted"),
        [
            ("<{{ c.function.arguments | tojson }}>", '<{"at": "sky"}>'),
            ("{{ c.function | tojson }}", '{"name": "look", "arguments": {"at": "sky"}}'),
            ("{{ '<' + c.function.arguments + '>' }}", f"<{TEXT}>"),
            ("<{{ c.function.arguments }}>", f"<{TEXT}>"),
            ("{{ '<' ~ c.function.arguments ~ '>' }}", f"<{TEXT}>"),
            ("<{{ c.function.arguments | trim }}>", f"<{TEXT}>"),
            ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "at=sky;"),
            (
                "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }};{% endfor %}",
                'at="sky";',
            ),
            (
                "{% if c.function.arguments is string %}{{ c.function.arguments }}"
                "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
                '{"at": "sky"}',
            ),
            ("{% if c.function.arguments is string %}<{{ c.function.arguments }}>{% endif %}", f"<{TEXT}>"),
            (
                "{% if c.function.arguments is not mapping %}{{ raise_exception('no object') }}{% endif %}"
                "{{ c.function.arguments | tojson }}",
                '{"at": "sky"}',
            ),
            ("{{ c.function }}", "{'name': 'look', 'arguments': {'at': 'sky'}}"),
        ],
    )
    def test_call_arguments_take_the_form_a_template_uses(self, shown: str, wanted: str) -> None:
        assert prompt(calls(shown), USER, calling(), result()) == f"hello{wanted}seen"

    def test_invalid_json_arguments_stay_text(self) -> None:
        strange = calling()
        strange["tool_calls"][0]["function"]["arguments"] = GivenArguments("{oh", "{oh")
        assert prompt(calls("{{ c.function.arguments | tojson }}"), USER, strange) == 'hello"{oh"'


class TestContentBesideCalls:
    """A template that takes both None and "" gets the one that was given."""

    NULL_ALONE = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
        "{% for c in m.tool_calls %}{{ '[' + c.function.arguments + ']' }}{% endfor %}"
        "{% elif m.content is not none %}{{ m.content }}{% endif %}{% endfor %}"
    )
    EMPTY_ALONE = calls("[{{ c.function.arguments | tojson }}]", "{{ m.content + '.' }}")
    PRINTED = calls("[{{ c.function.arguments | tojson }}]", "{{ m.content }}.")
    BOTH = calls(
        "[{{ c.function.arguments | tojson }}]", "{{ 'nothing' if m.content is none else m.content }}."
    )

    @pytest.mark.parametrize(
        ("template", "contents", "shown"),
        [
            (NULL_ALONE, [None, ""], f"hello[{TEXT}]seen"),
            (EMPTY_ALONE, [None, ""], 'hello.[{"at": "sky"}].seen.'),
            (PRINTED, [None, ""], 'hello.[{"at": "sky"}].seen.'),
            (BOTH, [None], 'hello.[{"at": "sky"}]nothing.seen.'),
            (BOTH, [""], 'hello.[{"at": "sky"}].seen.'),
            (BOTH, ["I look"], 'hello.[{"at": "sky"}]I look.seen.'),
        ],
    )
    def test_content_beside_calls_takes_form_template_accepts(
        self, template: str, contents: list[str | None], shown: str
    ) -> None:
        assert [prompt(template, USER, calling(one), result()) for one in contents] == [shown] * len(contents)


def test_refused_call_ids_become_the_same_short_id() -> None:
    mistral = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id is not defined or c.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "[{{ c.id }}]{% endfor %}{% if m.tool_call_id is defined %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
    )
    short = short_call_id(LONG_ID)
    assert len(short) == 9
    assert short.isalnum()
    assert prompt(mistral, USER, calling(identity=LONG_ID), result(LONG_ID)) == f"[{short}]({short})"


def test_reasoning_has_the_names_that_templates_know() -> None:
    template = (
        "{% for m in messages %}{{ [m.thinking, m.reasoning_content, m.reasoning] | join(',') }}{% endfor %}"
    )
    said = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert prompt(template, USER, said) == ",,hm,hm,hm"


class TestBegunAnswers:
    """Equal to transformers' `continue_final_message`."""

    R1 = (
        "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A>"
        "{{ m.content.split('</think>')[-1] }}<E>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<A><think>\n{% endif %}"
    )
    QWEN = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"

    @pytest.mark.parametrize("template", [R1, QWEN, TRIMMED])
    @pytest.mark.parametrize("said", ["world", "the world ", "", "one\n\ntwo\n"])
    def test_begun_answers_equal_transformers(self, template: str, said: str) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        begun = {"role": "assistant", "content": said, "reasoning_content": "hm"}
        right = render_jinja_template([[USER, begun]], chat_template=template, continue_final_message=True)[
            0
        ][0]
        assert prompt(template, USER, begun, begun=True) == right

    def test_begun_answer_keeps_only_what_template_renders(self) -> None:
        begun = {"role": "assistant", "content": "<think>a</think>b"}
        assert prompt(self.R1, USER, begun, begun=True) == "<U>hello<A>b"

    def test_begun_answer_follows_generation_prompt_if_turn_is_dropped(self) -> None:
        template = (
            "{% for m in messages if m.role == 'user' %}<U>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<A><think>\n{% endif %}"
        )
        begun = {"role": "assistant", "content": "world"}
        assert prompt(template, USER, begun, begun=True) == "<U>hello<A><think>\nworld"


class TestStrictTemplates:
    SYSTEM_FIRST = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    FIRST_ALONE = (
        "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    ALTERNATING = (
        "{% set ns = namespace(at=0) %}{% for m in messages %}"
        "{% if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% set ns.at = ns.at + 1 %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    FREE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    LATER = {"role": "system", "content": "Be kind."}  # noqa: RUF012
    SAID = {"role": "assistant", "content": "hi"}  # noqa: RUF012

    @pytest.mark.parametrize("template", [SYSTEM_FIRST, FIRST_ALONE])
    @pytest.mark.parametrize("messages", [[SYSTEM, LATER, USER], [SYSTEM, USER, LATER]])
    def test_system_messages_are_merged_at_the_start(
        self, template: str, messages: list[dict[str, Any]]
    ) -> None:
        assert prompt(template, *messages) == "<system>Be brief.\n\nBe kind.<user>hello"

    def test_same_role_turns_are_joined_for_alternating_templates(self) -> None:
        again = {"role": "user", "content": "again"}
        assert prompt(self.ALTERNATING, USER, again, self.SAID, USER) == (
            "<user>hello\n\nagain<assistant>hi<user>hello"
        )
        assert prompt(self.FREE, USER, again) == "<user>hello<user>again"

    def test_user_text_after_tool_results_joins_the_results(self) -> None:
        """Claude Code sends both in one turn; Mistral's templates count neither calls nor results."""
        template = self.ALTERNATING.replace(
            "{% if (", "{% if m.role != 'tool' and not m.tool_calls and ("
        ).replace(
            "{% set ns.at = ns.at + 1 %}",
            "{% if m.role != 'tool' and not m.tool_calls %}{% set ns.at = ns.at + 1 %}{% endif %}",
        )
        assert (
            prompt(template, USER, calling(), result(), USER) == "<user>hello<assistant><tool>seen\n\nhello"
        )

    def test_parallel_calls_are_split_for_single_call_templates(self) -> None:
        """Llama 3's does not."""
        single = "{% if m.tool_calls | length > 1 %}{{ raise_exception('single tool-calls') }}{% endif %}"
        template = calls(
            "[{{ c.id }} {{ c.function.arguments | tojson }}]", "<" + single + "{{ m.content }}>"
        )
        both = calling("I look")
        both["tool_calls"] = [*both["tool_calls"], *calling(identity="bcdefghi2")["tool_calls"]]
        shown = '[abcdefgh1 {"at": "sky"}]<I look><seen>[bcdefghi2 {"at": "sky"}]<><seen>'
        assert prompt(template, USER, both, result("bcdefghi2"), result()) == f"<hello>{shown}"
        assert prompt(template, USER, both, result("bcdefghi2"), result(), USER) == f"<hello>{shown}<hello>"

    def test_system_text_becomes_user_text_without_system_role(self) -> None:
        assert prompt(self.ALTERNATING, SYSTEM, USER, self.SAID) == "<user>Be brief.\n\nhello<assistant>hi"

    def test_gemma_has_system_text_in_the_first_user_turn(self) -> None:
        again = {"role": "user", "content": " again"}
        shown = (
            "<start_of_turn>user\nBe brief.\n\nhello<end_of_turn>\n<start_of_turn>model\nhi<end_of_turn>\n"
        )
        shown += "<start_of_turn>user\nhello\n\n again<end_of_turn>\n<start_of_turn>model\n"
        assert prompt(GEMMA, SYSTEM, USER, self.SAID, USER, again) == shown
        assert prompt(GEMMA, USER, self.SAID, SYSTEM, USER, again) == shown
        with pytest.raises(TemplateRefusal, match=r"must be of user, not of assistant$"):
            prompt(GEMMA, SYSTEM, self.SAID, USER)
