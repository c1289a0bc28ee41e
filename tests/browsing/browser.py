"""A real browser without a screen, and what a person does with the page in it."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

__all__ = ["LIMIT_S", "Browser", "Keys"]

#: Generous: the machine may be doing ten other things.
LIMIT_S = 60.0
_POLL_S = 0.05
_AXE = Path(__file__).with_name("vendor") / "axe-core" / "axe.min.js"
#: What a server refuses, as a test wants it; whatever else a browser complains about is a fault of the page.
_REFUSED = "Failed to load resource"
#: Writes wait for those that began before.
_KEPT = """
const [done] = arguments;
const opening = indexedDB.open("tpiedge");
opening.onerror = () => done("[]"); // the browser is told to keep nothing
opening.onsuccess = () => {
  const table = opening.result.transaction("conversations", "readwrite").objectStore("conversations");
  table.getAll().onsuccess = ({ target }) => { opening.result.close(); done(JSON.stringify(target.result)); };
};
"""
#: Tells in a variable of the window whether the element hears of the next click.
_LISTEN = """
const [aimed] = arguments, name = (e) => e.getAttribute("aria-label") || e.innerText;
window.clickHeard = false;
const hear = ({ target }) => {
  const hit = target.closest("button, a, summary");
  window.clickHeard = hit !== null && (hit === aimed || name(hit) === name(aimed)); // it may have been drawn anew
};
document.addEventListener("click", hear, { capture: true, once: true });
"""
#: Elements that may have the name, last first: the name that a screen reader says costs a tree of the whole page.
_NAMED = """
const [within, name] = arguments, root = document.querySelector(within);
const said = (e) => (e.getAttribute("aria-label") ?? "") + e.textContent + e.title;
return [...root.querySelectorAll("button, a, summary")].filter((e) => said(e).includes(name)).reverse();
"""


class Browser:
    """One window. What does not become true within LIMIT_S, or as long as is said, fails the test."""

    def __init__(self, program: str, driver: str, *, keeps: bool = True) -> None:
        """`keeps`: whether pages may store anything."""
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
            options.add_argument(f"--{flag}")
        # A process ahead of the next address costs more than it saves: each test has an address of its own.
        options.add_argument("--disable-features=SpareRendererForSitePerProcess,BackForwardCache")
        if not keeps:
            options.add_experimental_option("prefs", {"profile.default_content_setting_values.cookies": 2})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._service = webdriver.ChromeService(driver)
        self.driver = webdriver.Chrome(options, self._service)
        self.driver.set_page_load_timeout(LIMIT_S)
        self.driver.set_script_timeout(LIMIT_S)
        self._origins: set[str] = set()
        self._touch = self._dark = False

    def close(self) -> None:
        """Ends the browser and those of its processes that would outlive it."""
        family = psutil.Process(self._service.process.pid).children(recursive=True)
        self.driver.quit()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def open(self, url: str, path: str = "/") -> None:
        """Returns once the page knows which model there is, or asks for a key."""
        self._origins.add(url)
        self.driver.get(url + path)
        self.wait(lambda: self.see("#message") and self.see(".model, dialog[open], .problem"))

    def reload(self) -> None:
        """Once what the page began to keep is kept: a page that is left before that loses it."""
        self.kept()
        self.driver.refresh()
        self.wait(lambda: self.see("#message") and self.see(".model, dialog[open], .problem"))

    def shape(self, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        """A desktop's window, or a phone's, whose clock shows UTC."""
        self._touch, self._dark = touch, dark
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self._tell("Emulation.setDeviceMetricsOverride", **metrics)
        self._tell("Emulation.setTouchEmulationEnabled", enabled=touch)
        self._colour(dark)
        self._tell("Emulation.setTimezoneOverride", timezoneId="UTC")

    @contextmanager
    def second_tab(
        self, url: str, path: str = "/", *, duplicated: bool = False
    ) -> Iterator[Callable[[], None]]:
        """Open beside the first one, with the page in it: what is given changes to the other tab of the two. A
        duplicated one begins with what the first one has stored for itself."""
        tabs = [self.driver.current_window_handle]
        if duplicated:
            self.run("window.open(arguments[0])", url + path)
            self.driver.switch_to.window(self.driver.window_handles[-1])
        else:
            self.driver.switch_to.new_window("tab")
        tabs.append(self.driver.current_window_handle)

        def change() -> None:
            (other,) = {*tabs} - {self.driver.current_window_handle}
            self.driver.switch_to.window(other)

        try:
            self.shape(1200, 800)
            self.open(url, path)
            yield change
        finally:
            self.driver.switch_to.window(tabs[1])
            self.driver.close()
            self.driver.switch_to.window(tabs[0])

    def downloads_to(self, folder: Path) -> None:
        self._tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def attach(self, selector: str, file: Path) -> None:
        """Chooses a file in a field that may be hidden."""
        self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(str(file))

    def cut_off(self, *paths: str) -> None:
        """Makes addresses that contain one of `paths` unreachable."""
        self._tell("Network.enable")
        self._tell("Network.setBlockedURLs", urls=[f"*{path}*" for path in paths])

    def forget(self) -> None:
        """Leaves the page, and all that it has stored."""
        self.driver.get("about:blank")
        for origin in self._origins:
            self._tell("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        self._origins.clear()

    def complaints(self) -> list[str]:
        """Errors and warnings since the last look, apart from refusals of the server."""
        entries = [entry for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        return [entry["message"] for entry in entries if _REFUSED not in entry["message"]]

    def kept(self) -> str:
        """The conversations that the browser keeps, as JSON, with all that the page has begun to write."""
        return self.driver.execute_async_script(_KEPT)

    def run(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def draw(self) -> None:
        """Waits until a change that is due, and what follows from it, is drawn."""
        self.driver.execute_async_script(
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def wait(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        deadline = time.monotonic() + limit_s
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {limit_s} s; the page says:\n{self.text('body')}"
            time.sleep(_POLL_S)

    def see(self, selector: str) -> bool:
        """Whether it is there and has a size."""
        return bool(
            self.run(
                "return [...document.querySelectorAll(arguments[0])].some(e => e.getClientRects().length)",
                selector,
            )
        )

    def text(self, selector: str) -> str:
        """Returns the text of the first element; "" without one."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait(lambda: any(text in one for one in self.texts(selector)))

    def outside(self) -> list[int]:
        """Returns by how many pixels the page is wider and higher than the window, and its content wider than its
        place: 0 where the window never scrolls."""
        return self.run(
            "const { documentElement: page } = document, content = document.getElementById('content');"
            "return [page.scrollWidth - page.clientWidth, page.scrollHeight - page.clientHeight,"
            " content.scrollWidth - content.clientWidth]"
        )

    def focused(self) -> str:
        names: list[str] = []
        self._retry(lambda: names.append(self.driver.switch_to.active_element.accessible_name))
        return names[-1]

    def click(self, name: str, within: str = "body") -> None:
        """Clicks the last element of that name for a screen reader. The mouse misses elements that move: the click is
        repeated until it is heard."""

        def hit() -> bool:
            found = self._called(name, within)
            self.run(_LISTEN, found)
            found.click()
            return self.run("return window.clickHeard") is not False  # another page knows nothing of it

        self._retry(hit)

    def focus(self, name: str, within: str = "body") -> None:
        """Presses Tab until the element has the focus."""
        focused = "arguments[0].focus(); return document.activeElement === arguments[0]"
        self._retry(lambda: self.run(focused, self._called(name, within, seen=False)))

    def type(self, selector: str, text: str) -> None:
        self._retry(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(text))

    def tick(self, name: str) -> None:
        """The box that is called so, which is empty. The mouse misses what moves at that moment."""

        def ticked() -> bool:
            found = self.driver.find_elements(By.CSS_SELECTOR, "input[type=checkbox]")
            box = next(one for one in found if one.accessible_name == name)
            if not box.is_selected():
                box.click()
            return box.is_selected()

        self._retry(ticked)

    def press(self, *keys: str) -> None:
        for key in keys:
            self._retry(lambda key=key: self.driver.switch_to.active_element.send_keys(key))

    def paste(self, text: str) -> None:
        """Into the empty message box, at once. The page hears of it, as it might draw the box anew otherwise."""
        self.run(
            "const box = document.querySelector('#message'); box.value = arguments[0]; "
            "box.dispatchEvent(new Event('input', {bubbles: true}))",
            text,
        )

    def say(self, text: str) -> None:
        """Enter is a new line on a phone."""
        self.type("#message", text)
        if self._touch:
            self.click("Send")
        else:
            self.press(Keys.ENTER)

    def answers(self) -> list[str]:
        return self.texts(".answer .markdown")

    def wait_for_answers(self, *texts: str) -> None:
        """Waits until exactly these answers are there, all complete."""
        self.wait(lambda: self.answers() == list(texts) and not self.see(".progress"))

    def flaws(self) -> list[str]:
        """Returns the serious and critical violations that axe finds. Light and dark differ in colours only."""
        found = self._flaws()
        self._colour(not self._dark)
        self.draw()
        found += self._flaws("color-contrast")
        self._colour(self._dark)
        return found

    def _flaws(self, *rules: str) -> list[str]:
        if not self.run("return 'axe' in window"):
            self.run(_AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const [rules, done] = arguments; axe.run(rules.length ? {runOnly: rules} : {})"
            ".then(({violations}) => done(violations), e => done([{id: String(e)}]))",
            rules,
        )
        return [json.dumps(flaw)[:1500] for flaw in found if flaw.get("impact") not in ("minor", "moderate")]

    def _colour(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[scheme])

    def _called(self, name: str, within: str, *, seen: bool = True) -> Any:
        found: Sequence[Any] = self.run(_NAMED, within, name)
        return next(one for one in found if one.accessible_name == name and (one.is_displayed() or not seen))

    def _retry(self, act: Callable[[], object]) -> None:
        """The page renders while it is used: what was found may be gone a moment later. `act` returns False where
        nothing came of it."""

        def tried() -> bool:
            try:
                return act() is not False
            except (WebDriverException, LookupError, StopIteration):
                return False

        self.wait(tried)

    def _tell(self, command: str, **values: object) -> None:
        self.driver.execute_cdp_cmd(command, values)
