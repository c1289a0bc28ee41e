"""Pictures of the page in fixed states, and the distance between two pictures."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.browsing.browser import Browser, Keys
from tests.browsing.watched import watch
from tests.fakes.service import FakeGeneration, FakeService
from tests.http.conftest import SECRET

#: Where the pictures are that others are compared with.
PICTURES: Final = Path(__file__).with_name("pictures")

_ANSWER: Final = """Three machines share the work:

1. **ann** has half of every layer,
2. `bob` and the master share the rest.

```python
def share(layer: int) -> str:  # who computes it
    return "everybody"
```

| machine | part |
|---|--:|
| ann | 50 % |
"""
#: What blinks, moves or counts is not drawn.
_STILL: Final = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("* { caret-color: transparent !important; animation: none !important; } "
  + ".facts { visibility: hidden; } .messages { scrollbar-width: none; }");
document.adoptedStyleSheets = [sheet];
"""
#: The share of squares of 8 pixels whose mean colour differs by more than `limit` of 255 in red, green or blue.
_COMPARE: Final = """
const [one, other, limit, done] = arguments;
const SIDE = 8;
async function means(source) {
  const bitmap = await createImageBitmap(await (await fetch(source)).blob());
  const [columns, rows] = [Math.ceil(bitmap.width / SIDE), Math.ceil(bitmap.height / SIDE)];
  const canvas = new OffscreenCanvas(columns * SIDE, rows * SIDE).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  const { data, width } = canvas.getImageData(0, 0, columns * SIDE, rows * SIDE);
  const sums = new Float64Array(columns * rows * 3);
  for (let at = 0; at < data.length / 4; at++) {
    const square = Math.floor(at / width / SIDE) * columns + Math.floor((at % width) / SIDE);
    for (let part = 0; part < 3; part++) sums[3 * square + part] += data[4 * at + part] / SIDE ** 2;
  }
  return { size: `${bitmap.width}x${bitmap.height}`, sums };
}
Promise.all([means(one), means(other)]).then(([a, b]) => {
  if (a.size !== b.size) return done(1);
  let count = 0;
  for (let at = 0; at < a.sums.length; at += 3) {
    count += [0, 1, 2].some((part) => Math.abs(a.sums[at + part] - b.sums[at + part]) > limit);
  }
  return done((3 * count) / a.sums.length);
}, (error) => done(String(error)));
"""
#: A number of a text's pixels in each of the page's fonts: they are the system's, and so is how letters are drawn.
_LETTERS: Final = """
return ["--sans", "--mono"].map((name) => {
  const canvas = new OffscreenCanvas(400, 24).getContext("2d");
  canvas.font = "16px " + getComputedStyle(document.documentElement).getPropertyValue(name);
  canvas.fillText("Three machines share the work", 0, 18);
  const { data } = canvas.getImageData(0, 0, 400, 24);
  return data.reduce((sum, value) => (31 * sum + value) % 1_000_000_007, 1);
}).join(" ");
"""


@dataclass(frozen=True)
class Walk:
    """Pictures of one page in a window of one size, by name: what is done before each of them, from state to state."""

    name: str
    acts: dict[str, Callable[[Browser, FakeService], None]]
    width: int
    height: int
    touch: bool = False
    schemes: tuple[str, ...] = ("", "-dark")

    def pictures(self, browser: Browser, service: FakeService, url: str) -> dict[Path, bytes]:
        self._draw(browser, self.schemes[0])
        browser.open(url)
        browser.run(_STILL)
        found = {}
        for name, act in self.acts.items():
            act(browser, service)
            for scheme in self.schemes:
                self._draw(browser, scheme)
                found[PICTURES / f"{name}{scheme}.png"] = browser.driver.get_screenshot_as_png()
        return found

    def _draw(self, browser: Browser, scheme: str) -> None:
        browser.shape(self.width, self.height, dark=bool(scheme), touch=self.touch)
        browser.draw()


def letters(browser: Browser) -> str:
    """Equal where the page, which is shown, has the same letters, pixel by pixel."""
    return str(browser.run(_LETTERS))


def differing(browser: Browser, pictures: Iterable[tuple[bytes, bytes]], limit: int) -> list[float]:
    """The share of small squares of each two pictures that differ by more than `limit` of 255: 0 to 1. Leaves the
    page."""
    browser.driver.get("data:text/html,")
    shares = []
    for pair in pictures:
        sources = ["data:image/png;base64," + base64.b64encode(png).decode() for png in pair]
        shares.append(browser.driver.execute_async_script(_COMPARE, *sources, limit))
    assert all(isinstance(share, int | float) for share in shares), shares
    return shares


def _new(_browser: Browser, _service: FakeService) -> None:
    """A page that was just opened."""


def _answered(browser: Browser, service: FakeService) -> None:
    def script(generation: FakeGeneration) -> None:
        assert service.tokenizer is not None
        generation.say(*service.tokenizer.encode(_ANSWER, add_special=False))
        generation.finish("stop")

    service.script = script
    browser.run("location.hash = '#chat'")
    browser.wait(lambda: browser.see("#message"))
    browser.say("Who does what?")
    browser.wait(lambda: browser.see(".facts") and browser.see(".hljs-keyword"))


def _settings(browser: Browser, _service: FakeService) -> None:
    browser.focus("Settings")  # a mouse would stay on the button
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.see("dialog"))


def _locked(browser: Browser, _service: FakeService) -> None:
    browser.press(Keys.ESCAPE)
    browser.run("location.hash = '#cluster'")
    browser.wait(lambda: browser.see(".locked"))


def _watched(browser: Browser, service: FakeService) -> None:
    watch(service)
    browser.run("sessionStorage['tpiedge.key.admin'] = arguments[0]", SECRET)
    browser.click("Cluster")
    # A rate is known after a second, and drawn over two looks.
    browser.wait(lambda: browser.see(".sparkline") and "0.0" in browser.text(".figures"))


_ACTS: Final = {"new": _new, "settings": _settings, "locked": _locked, "answer": _answered}
WALKS: Final = (
    Walk("desktop", _ACTS, 1000, 640),
    Walk("phone", {f"{name}-phone": act for name, act in _ACTS.items()}, 390, 720, touch=True),
    Walk("cluster", {"cluster": _watched}, 1180, 1873, schemes=("",)),
    Walk("cluster-phone", {"cluster-phone": _watched}, 390, 3146, touch=True, schemes=("-dark",)),
)
