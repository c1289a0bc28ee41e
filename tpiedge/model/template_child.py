"""Renders one chat template in a process of its own, which may be killed at any time.

Started by `template.py` as a script (`python -I -S template_child.py FOLDER...`, the folders that hold jinja2
and markupsafe), with a JSON job on stdin; writes {"text": ...}, {"error": ...} or, where it met a limit, {"limit": ...}
to stdout. The template is
hostile until proven otherwise: Jinja's immutable sandbox keeps it from Python's objects, the limits set here
keep it from CPU, memory and files. Imports nothing of tpiedge, to start fast. The process ends with the thread that
waits for it.
"""

import json
import sys
from typing import Any

__all__: list[str] = []

_MAX_ERROR = 300
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main() -> None:
    """Read the job, render, answer."""
    sys.path += sys.argv[1:]
    job = json.loads(sys.stdin.buffer.read())
    _limit(job["limits"])
    try:
        answer = {"text": _render(job)}
    except MemoryError:
        answer = {"limit": "it needs too much memory"}
    except RecursionError:
        answer = {"limit": "it is nested too deeply"}
    except _TooLong as error:
        answer = {"limit": str(error)}
    except Exception as error:
        answer = {"error": _describe(error)}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


class _TooLong(Exception):
    """The template writes more than it may."""


def _limit(limits: dict[str, int]) -> None:
    """Bound this process for good. What the system lacks (macOS: memory) is left to the parent's deadline."""
    import resource

    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)

    wanted = {
        resource.RLIMIT_AS: (limits["memory"],) * 2,
        # At the hard limit the kernel sends SIGKILL, as the OOM killer does; before that, at the soft one, SIGXCPU.
        resource.RLIMIT_CPU: (limits["cpu_s"], limits["cpu_s"] + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, value in wanted.items():
        try:
            resource.setrlimit(kind, value)
        except (ValueError, OSError):
            continue


def _render(job: dict[str, Any]) -> str:
    template = _environment().from_string(job["template"])
    pieces, length = [], 0
    for piece in template.generate(**job["variables"]):
        length += len(piece)
        if length > job["limits"]["characters"]:
            raise _TooLong(f"it writes more than {job['limits']['characters']} characters")
        pieces.append(piece)
    return "".join(pieces)


def _environment() -> Any:
    """What templates on the Hub expect: transformers' environment."""
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_extension()]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.pop("lipsum")
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=_strftime_now,
        namespace=_namespace_class(),
        dict=_Dict(),
    )
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


class _Dict:
    """`dict(...)` for templates, without the attributes of the class `dict`."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)


def _namespace_class() -> type:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    def check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")

    class SafeNamespace(Namespace):
        """Refuses names that lead to Python's internals."""

        def __init__(*args: Any, **values: Any) -> None:
            self, *rest = args  # so that a template may set an attribute called self
            attributes = dict(*rest, **values)
            for name in attributes:
                check(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check(name)
            super().__setitem__(name, value)

    return SafeNamespace


def _generation_extension() -> type:
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        """{% generation %}...{% endgeneration %} marks training targets; here it is its contents."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag


def _describe(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = " ".join(str(error).split()) or type(error).__name__
    if type(error).__name__ not in ("TemplateError", "TemplateRuntimeError", "ValueError"):
        text = f"{type(error).__name__}: {text}"
    return (text if line is None else f"line {line}: {text}")[:_MAX_ERROR]


if __name__ == "__main__":
    main()
