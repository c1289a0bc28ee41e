"""A model's chat template."""

from pathlib import Path
from typing import Final

from tests.fuzz.forms import TEXT
from tests.fuzz.parser import DEMO, MESSAGES, Parser, Read, words_of
from tpiedge.errors import UserError

_LEAKS = ("<class 'type'>", "<class 'object'>", "<module '", "'__builtins__'")


class _Escaped(BaseException):
    """The template has laid hands on Python's own objects."""


def _template(folder: Path) -> Read:
    from tpiedge.model import text_child
    from tpiedge.sanitise import sanitised_line

    variables = {"messages": MESSAGES, "add_generation_prompt": True, "tools": None, "bos_token": "<s>"}

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        job = {"template": text, "variables": variables, "characters": 100_000}
        try:
            shown = text_child._render(job)
        except Exception as error:  # as the child's main does
            raise UserError(sanitised_line(text_child._describe(error), 320)) from None
        if any(leak in shown and leak not in text for leak in _LEAKS):
            raise _Escaped(shown[:300])

    return read


def _template_seeds() -> list[bytes]:
    return [
        (DEMO / "chat_template.jinja").read_bytes(),
        b"{% for m in messages %}{{ bos_token }}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}",
        b"{%- set ns = namespace(found=false, n=0) -%}{% if tools is not none %}{{ tools | tojson }}{% else %}"
        b"{{ messages | tojson(indent=2) }}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endif %}",
        b"{% macro say(m, loud=false) -%}{{ m.content | upper if loud else m.content }}{%- endmacro %}"
        b"{% for m in messages if m.role != 'system' %}{{ say(m, loop.last) }}{% if loop.index0 > 3 %}{% break %}"
        b"{% endif %}{% endfor %}{{ raise_exception('no') if messages | length > 9 }}",
        b"{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}{{ dict(a=1).items() | list }}{{ 'a' ~ 1 }}",
        b"{% set x = messages[0]['content'].split(' ')[-1] %}{{ x.format(1) }}{{ range(3) | join(',') }}{# c #}",
    ]


_TEMPLATE_WORDS = words_of(
    "{{ }} {% %} {%- -%} {# #} __class__ __mro__ __subclasses__() __globals__ __init__ __builtins__ .__ ['__class__'] "
    "|attr('__class__') |map(attribute='__class__') |list |tojson |join |safe |string |format |pprint |xmlattr "
    "|batch(99) |center(99) |indent(9) |replace('','x') |groupby('role') |sort |unique |sum |random "
    "self loop cycler joiner namespace() dict() range(99) lipsum raise_exception strftime_now caller super() varargs "
    "import include extends block macro call filter with autoescape set for if else elif endif endfor endmacro endset "
    "endcall recursive is in not ** ~ // %s .format( .join( .mro .gi_frame .f_globals .format_map( .__call__"
)


PARSERS: Final = (
    Parser(
        "template", _template, _template_seeds, form=TEXT, words=_TEMPLATE_WORDS, confined=True,
    ),
)  # fmt: skip
