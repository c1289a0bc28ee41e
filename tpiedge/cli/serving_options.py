"""How many requests are answered at once, how, and for whom: the flags of what answers."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from tpiedge.wire.control import SPECULATE_AUTO
from tpiedge.wire.limits import MAX_SEQUENCES

_PARALLEL = 16
_NAME_CHARACTERS = 200
_MOST_DRAFTED = 15  # with the token before them they fill a small batch of the kernels
_WORDS = {"auto": SPECULATE_AUTO, "off": 0}


class _Speculate(click.ParamType[int]):
    """`Assign.speculate`."""

    name = "auto|off|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text in _WORDS:
            return _WORDS[text]
        if len(text) > 2 or not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_DRAFTED:
            wanted = f"'auto', 'off' or a number from 1 to {_MOST_DRAFTED}"
            self.fail(f"{text[:20]!r} is none of {wanted}", param, ctx)
        return int(text)

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(word) for word in _WORDS if word.startswith(incomplete)]


class _Alias(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip() or len(text) > _NAME_CHARACTERS or not text.isprintable():
            self.fail(f"a name has 1 to {_NAME_CHARACTERS} printable characters", param, ctx)
        return text


alias_option = click.option(
    "--alias",
    "aliases",
    type=_Alias(),
    multiple=True,
    help="What clients may call the model, too; repeatable.",
)
public_name_option = click.option(
    "--public-name",
    "public_names",
    metavar="NAME[:PORT]",
    multiple=True,
    help="What clients may call this server, too, as behind a proxy; repeatable.",
)
trusted_proxy_option = click.option(
    "--trusted-proxy",
    "trusted_proxies",
    metavar="ADDRESS[/BITS]",
    multiple=True,
    help="A proxy whose X-Forwarded-For or Forwarded says who asks; repeatable.",
)
share_prefixes_option = click.option(
    "--share-prefixes",
    is_flag=True,
    help="Beginnings of prompts that were computed for one client are used for all: they can find out each other's.",
)
parallel_option = click.option(
    "--parallel",
    type=click.IntRange(1, MAX_SEQUENCES),
    default=_PARALLEL,
    show_default=True,
    help="Requests that are answered at once; others wait.",
)
kv_tokens_option = click.option(
    "--kv-tokens",
    type=int,
    help="Positions of the KV cache for all answers together, at least the context.  [default: the context]",
)
speculate_option = click.option(
    "--speculate",
    type=_Speculate(),
    metavar=f"[{_Speculate.name}]",
    default="auto",
    show_default=True,
    help="Tokens that a step guesses from the text so far and checks at once; no answer changes.",
)
