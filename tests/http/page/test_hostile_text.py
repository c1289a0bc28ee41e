import pytest

from tests.browsing.browser import Keys
from tests.http.conftest import answers

#: Each would set window.hit.
HOSTILE = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<svg onload='window.hit = 1'><animate onbegin='window.hit = 1'></svg>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "[click](javascript:window.hit=1)",
    "[click](JaVaScRiPt:window.hit=1)",
    "[click](java&#10;script:window.hit=1)",
    "[click](data:text/html,<script>window.hit=1</script>)",
    "<javascript:window.hit=1>",
    '![x](x"onerror="window.hit=1)',
    "![x](javascript:window.hit=1)",
    '[x](https://example.org "a\\" onmouseover=\\"window.hit=1")',
    '```html" onload="window.hit=1\n<script>window.hit=1</script>\n```',
    "```python\n</code></pre><img src=x onerror=window.hit=1>\n```",
    "<math><mtext></p><style><img src=x onerror=window.hit=1></style></mtext></math>",
    "<form action=javascript:window.hit=1><button id=message>send</button></form>",
    "<a id=chats name=body href=cid:x>clobber</a>",
    "| <img src=x onerror=window.hit=1> | b |\n|---|---|\n| [c](vbscript:window.hit=1) | `<script>` |",
    "<style>body { display: none }</style><link rel=stylesheet href=//example.org/x.css>",
    r"\(\href{javascript:window.hit=1}{x}\) \(\includegraphics{//example.org/x.png}\) \(\htmlId{app}{x}\)",
    r"\(\def\x{\x\x}\x\) \(\htmlStyle{position:fixed}{x}\) \(\text{<img src=x onerror=window.hit=1>}\)",
    r"\(\newcommand{\y}{z}\y\) \(\mathllap{z}\) \(\def\y{z}\y\)",  # of a kind that can take long
    r"\(" + "{" * 1900 + "}" * 1900 + r"\)",
    r"\[" * 2000,
    "> " * 2000 + "deep",
    "*" * 5000,
    "[" * 5000,
]
ALLOWED = (
    "a blockquote br button code del div em h2 h3 h4 hr li ol p path pre s span strong svg "
    "table tbody td th thead tr ul"
)


@pytest.mark.fault("H5", "what a model or somebody says is text on the page, whatever it looks like")
def test_hostile_text_is_shown_as_plain_text(browser, service, serve):
    service.max_sequence = 65_536
    browser.open(serve().url)
    for number, text in enumerate(HOSTILE, 1):
        answers(service, text)
        browser.paste(text)
        browser.type("#message", "." + Keys.ENTER)
        browser.wait(lambda number=number: len(browser.texts(".facts")) == number)
        assert browser.run("return window.hit ?? null") is None, text[:40]
        assert browser.see("h1"), text[:40]
    for link in browser.run("return document.querySelectorAll('.markdown a')"):
        address = browser.run("return arguments[0].getAttribute('href')", link)
        assert address is None or address.startswith(("https://", "http://", "mailto:")), address
        browser.run("arguments[0].removeAttribute('href'); arguments[0].click()", link)
    found = browser.run(
        "return [...document.querySelectorAll('.message *')].filter((e) => !e.closest('math'))"
        ".map((e) => [e.localName, e.getAttributeNames()])"
    )
    formulas = browser.run(
        "return [...document.querySelectorAll('math, math *')].map((e) => [e.localName, e.getAttributeNames()])"
    )
    assert formulas
    assert "z" not in browser.texts("math mi")
    assert {name for name, _ in formulas} <= {"math", "mrow", "mi", "mo", "mtext", "mstyle"}
    assert not {name for _, names in formulas for name in names} & {"href", "src", "id"}
    assert {name for name, _ in found} <= set(ALLOWED.split())
    assert not [
        name for _, names in found for name in names if name.startswith("on") or name in ("id", "style")
    ]
    assert browser.run("return window.hit ?? null") is None
    said = browser.texts(".question .said")
    assert [one.rstrip(".").split() for one in said] == [text.split() for text in HOSTILE]


@pytest.mark.fault("H5", "a script that got into the page would not run")
def test_content_security_policy_blocks_injected_scripts(browser, serve):
    """The policy, for the day on which what the others hold fails."""
    browser.open(serve().url)
    for script in (
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'}))",
        "document.body.innerHTML = '<img src=x onerror=\"window.hit = 1\">'",
        "document.body.setAttribute('onclick', 'window.hit = 1'); document.body.click()",
        "return fetch('https://example.org/').catch(() => null)",
    ):
        browser.run(f"try {{ {script} }} catch {{}}")
    assert browser.run("return window.hit ?? null") is None
    assert (
        len([one for one in browser.complaints() if "Content Security Policy" in one or "Trusted" in one])
        >= 3
    )
