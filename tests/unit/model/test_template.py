import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tpiedge
from tpiedge.api.errors import of_exception
from tpiedge.errors import ChildLost, UserError
from tpiedge.model import text_process
from tpiedge.model.template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>é</b> 😀 'quoted'"},
    {"role": "assistant", "content": "  Hello. "},
    {"role": "user", "content": "Bye"},
]

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}\
{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {% else %}
{{ ' ' + message['content'] | trim + ' ' + eos_token }}
    {% endif %}
{% endfor %}
"""

TOOLS = """{% set ns = namespace(found=false) %}{% for message in messages %}
{% if message.role == 'system' %}{% continue %}{% endif %}{% set ns.found = true %}
{% generation %}{{ message.content | tojson }}{% endgeneration %}
{% endfor %}{{ tools | tojson(indent=2) if tools else 'no tools' }}{{ ns.found }}{{ dict(a=1).a }}
{{- enable_thinking | default('unset') }}"""

GEMMA = (Path(tpiedge.__file__).parents[1] / "configs/templates/gemma.jinja").read_text()


def template(text: str, **limits: Any) -> ChatTemplate:
    return ChatTemplate({"default": text}, TOKENS, **limits)


def render(text: str, **limits: Any) -> str:
    return template(text, **limits).render(CHAT)


FUNCTIONS = [{"type": "function", "function": {"name": "f<1>", "parameters": {}}}]
CASES: list[tuple[str, bool, Any, dict[str, Any]]] = [
    *((text, prompt, None, {}) for text in (CHATML, LLAMA2, TOOLS, GEMMA) for prompt in (True, False)),
    (TOOLS, True, FUNCTIONS, {"enable_thinking": False}),
]


@pytest.mark.parametrize(("text", "prompt", "tools", "variables"), CASES)
def test_prompts_equal_transformers(text: str, prompt: bool, tools: Any, variables: dict[str, Any]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    ours = template(text).render(CHAT, add_generation_prompt=prompt, tools=tools, variables=variables)
    more = {"tools": tools, "add_generation_prompt": prompt, **variables, **TOKENS}
    assert ours == render_jinja_template([CHAT], chat_template=text, **more)[0][0]


class TestOpen:
    def test_templates_saved_by_transformers_are_read(self, tmp_path: Path) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        saved = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
        saved.chat_template = {"default": "plain", "tool_use": "tools", "rag": "found"}
        saved.save_pretrained(tmp_path / "files")
        saved.save_pretrained(tmp_path / "config", save_jinja_files=False)
        for kind in ("files", "config"):
            found = ChatTemplate.open(tmp_path / kind, TOKENS)
            assert (found.source(tools=False), found.source(tools=True)) == ("plain", "tools")
        assert ChatTemplate({"default": "plain"}, {}).source(tools=True) == "plain"

    @pytest.mark.parametrize("config", [None, "{}", '{"chat_template": null}', '{"chat_template": []}'])
    def test_missing_template_is_refused_with_advice(self, tmp_path: Path, config: str | None) -> None:
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(UserError, match="has no chat template: use text completion"):
            ChatTemplate.open(tmp_path, TOKENS)

    @pytest.mark.parametrize("value", [7, {"a": 1}, [7], [{"name": "a"}], [{"name": 1, "template": "x"}]])
    def test_malformed_config_is_named(self, tmp_path: Path, value: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
        with pytest.raises(UserError, match=r"tokenizer_config\.json: chat_template"):
            ChatTemplate.open(tmp_path, TOKENS)


def refuse(text: str, named: str, **limits: Any) -> None:
    with pytest.raises(UserError, match=named) as raised:
        render(text, **limits)
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{{ raise_exception('Only\nuser \x1b[31m roles') }}", r"failed: Only user \\x1b\[31m roles"),
        ("{{", "line 1: TemplateSyntaxError"),
        ("ok\n{% if %}", "line 2"),
        ("{{ messages[99].content }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import 'os' as os %}", "no loader"),
    ],
)
def test_failures_are_one_line(text: str, named: str) -> None:
    refuse(text, named)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].system('id') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ ''['__class__']['__mro__'][1] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{a.__class__}'.format_map({'a': ''}) }}",
        "{{ ('{0.__class__' ~ '.__mro__}')|format }}{{ ''.__class__() }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ [''].__class__.__init__.__globals__ }}",
        "{{ (messages|map(attribute='__class__')|first).__mro__ }}",
        "{{ messages.sort.__self__.__class__ }}",
        "{{ tojson.__globals__ }}",
        "{{ get_flashed_messages.__globals__ }}{{ config.items() }}",
        "{{ dict.__class__.__mro__ }}",
        "{% set x = (()|attr('__cl' ~ 'ass__')) %}{{ x.__base__ }}",
    ],
)
@pytest.mark.fault("F3", "blocked")
def test_escapes_from_the_sandbox_are_blocked(text: str) -> None:
    """An unsafe attribute is undefined: it prints as nothing, and any use of it is an error."""
    message = "chat template failed: SecurityError"
    try:
        assert render(text) == ""
    except UserError as error:
        message = str(error)
    assert re.search("chat template failed: (SecurityError|UndefinedError)", message)


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 9 ** (9 ** 9) }}",
    ],
    ids=["loop", "macro", "power"],
)
@pytest.mark.fault("F3", "killed; an error")
def test_endless_templates_are_killed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setitem(text_process._CPU_S, b"R", 1)
    before = os.times()
    refuse(text, "took too much time or memory|took more than", wall_s=20.0)
    after = os.times()
    assert sum(after[2:4]) - sum(before[2:4]) < 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{{ 'a' * 10**9 }}", "too much memory"),
        ("{% set x = namespace(v='aaaaaaaa') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}",
         "too much memory"),
        ("{{ [0] * 10**9 }}", "too much memory"),
        ("{{ '%999999999d' % 1 }}", "too much memory"),
        ("{{ 'x' | center(999999999) }}", "too much memory"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "more than 8000000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("{{ " + "(" * 5000 + "}}", "nested too deeply"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
@pytest.mark.fault("F3", "killed at their limit of memory; an error")
def test_bombs_end_in_an_error(text: str, named: str) -> None:
    refuse(text, f"{named}|too much time or memory")


def test_template_child_is_isolated_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    real = subprocess.Popen

    def spy(command: list[str], **options: Any) -> Any:
        seen.update(command=command, **options)
        return real(command, **options)

    monkeypatch.setenv("TPIEDGE_SECRET", "hidden")
    monkeypatch.setattr(subprocess, "Popen", spy)
    assert render("x") == "x"
    assert "TPIEDGE_SECRET" not in seen["env"]
    assert seen["command"][:3] == [sys.executable, "-I", "-S"]


class _Killed:
    """Starts what it is given, but for the first processes, which are killed as the OOM killer would."""

    def __init__(self, kills: int) -> None:
        self.began = 0
        self._kills = kills
        self._start = subprocess.Popen

    def __call__(self, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        self.began += 1
        if self.began <= self._kills:
            command = [sys.executable, "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        return self._start(command, **options)


@pytest.mark.fault("P22", "begun again once: the same prompt")
def test_killed_template_process_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = render(CHATML)
    killed = _Killed(1)
    monkeypatch.setattr(subprocess, "Popen", killed)
    assert render(CHATML) == usual
    assert killed.began == 2


@pytest.mark.fault("P22", "killed again: 503 and Retry-After")
def test_template_process_killed_twice_gives_503(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = _Killed(9)
    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(ChildLost, match=r"was killed twice, .*: try again later") as raised:
        render(CHATML)
    assert killed.began == 2
    answer = of_exception(raised.value)
    assert (answer.status, answer.headers) == (503, {"Retry-After": "5"})


@pytest.mark.parametrize("name", ["socket.socketpair", "subprocess.Popen"])
def test_failed_process_start_raises_child_lost(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(name, full)
    with pytest.raises(
        ChildLost, match=r"no room for the process of a text or a grammar \(Too many open files\)"
    ):
        render(CHATML)
