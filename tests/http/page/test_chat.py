import json
from dataclasses import replace

import httpx

from tests.browsing.browser import Keys
from tests.http.conftest import answers
from tpiedge.errors import PeerLost

LIMIT_S = 30.0
FORMULAS = r"""With \(x_1 * y_1\) and $e^x$, not \(\frac{1}{\):

\[
\begin{aligned}
a &= b \\[2pt]
c &= \sum_{i=1}^{n} i
\end{aligned}
\]

Then \(\text{<img src=x onerror=window.hit=1>}\).
"""


def prompt_of(service):
    """Returns the prompt of the next answer."""
    generation = service.generations.get(timeout=LIMIT_S)
    return service.tokenizer.decode(list(generation.request.prompt_ids))


def test_page_shows_an_answer_while_it_is_generated(browser, service, url, words):
    browser.open(url)
    browser.say("Tell me a story")
    generation = service.generations.get(timeout=LIMIT_S)
    browser.wait_for_text(".progress", "Reading the prompt")
    generation.say(*words("Once upon a time"))
    browser.wait_for_text(".answer", "Once upon a time")
    browser.wait_for_text(".progress", "tokens")
    assert browser.see("[aria-label=Stop]")
    assert browser.run("return document.querySelector('.answer').ariaBusy") == "true"
    generation.say(*words(" there was a fox."))
    generation.finish("stop", cached=3, steps=2)
    browser.wait_for_answers("Once upon a time there was a fox.")
    count = len(words("Once upon a time")) + len(words(" there was a fox."))
    facts = browser.text(".facts")
    assert f"{count} tokens" in facts
    assert f"{count / 2:g} tokens per step" in facts
    assert "3 cached" in facts
    browser.wait_for_text("[role=status]", "Answer: Once upon a time there was a fox.")


def test_stop_or_reload_cancels_a_running_answer(browser, service, url, words):
    browser.open(url)
    stops = (lambda: browser.click("Stop"), lambda: browser.press(Keys.ESCAPE))
    for number, stop in enumerate(stops, 1):
        browser.say("Count")
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*words("one two"))
        browser.wait(lambda count=number: browser.answers() == ["one two"] * count)
        browser.wait(lambda: browser.see("[aria-label=Stop]"))
        stop()
        browser.wait(lambda count=number: browser.text("main").count("Stopped.") == count)
        assert generation.cancelled.wait(LIMIT_S)
    assert browser.answers() == ["one two", "one two"]
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("half"))
    browser.wait_for_text(".answer", "half")
    browser.reload()
    browser.wait_for_text(".answer", "Interrupted when the page was closed.")
    assert generation.cancelled.wait(LIMIT_S)


def test_page_sends_conversation_history_and_settings(browser, service, url):
    answers(service, "Four.")
    browser.open(url)
    browser.click("Settings")
    browser.type("#set-system", "Be terse")
    for name, value in {"temperature": "0.5", "top_p": "0.9", "max_tokens": "77", "seed": "4"}.items():
        browser.type(f"#set-{name}", value)
    browser.click("Done")
    browser.say("2+2?")
    browser.wait_for_answers("Four.")
    request = service.generations.get(timeout=LIMIT_S).request
    assert service.tokenizer.decode(list(request.prompt_ids)) == "<system>Be terse<user>2+2?"
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert (request.sampling.seed, request.max_tokens) == (4, 77)
    browser.say("And 3?")
    browser.wait_for_answers("Four.", "Four.")
    assert prompt_of(service) == "<system>Be terse<user>2+2?<assistant>Four.<user>And 3?"
    answers(service, "```python\nprint(1)\n```")
    browser.say("Code, please")
    browser.wait(lambda: browser.see(".code .hljs-built_in"))
    loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert {httpx.URL(one).port for one in loaded} == {httpx.URL(url).port}, "all comes from the server"


def hold_two_conversations(browser, service, url):
    """Returns the selector of the listed conversations."""
    answers(service, "Hm.")
    browser.open(url)
    for question in ("About foxes", "About bears"):
        browser.click("New chat")
        browser.wait(lambda: not browser.answers())
        browser.say(question)
        browser.wait_for_answers("Hm.")
    return ".conversations li a"


def test_conversations_stay_and_are_renamed_and_deleted(browser, service, url):
    listed = hold_two_conversations(browser, service, url)
    assert browser.texts(listed) == ["About bears", "About foxes"]
    browser.reload()
    browser.wait_for_answers("Hm.")
    assert browser.texts(listed) == ["About bears", "About foxes"]
    browser.click("About foxes")
    browser.wait_for_text(".question .said", "About foxes")
    browser.click("Rename “About foxes”")
    browser.wait(lambda: browser.focused() == "New name")
    browser.press("Foxes", Keys.ENTER)
    browser.wait(lambda: browser.texts(listed) == ["About bears", "Foxes"])
    browser.click("Delete “Foxes”")
    browser.click("Delete", "dialog")
    browser.wait(lambda: browser.texts(listed) == ["About bears"])
    browser.wait(lambda: not browser.answers())  # the list is drawn before the talk
    browser.reload()
    browser.wait(lambda: browser.texts(listed) == ["About bears"])


def test_page_shows_why_an_answer_failed(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("half"))
    browser.wait_for_text(".answer", "half")
    generation.fail(PeerLost(2, "step 3", "its process ended"))
    browser.wait_for_text(".answer", "Answer cut off: node 2 was lost during step 3: its process ended")
    service.unavailable = "too few machines"
    browser.click("Try again")
    browser.wait_for_text(".answer", "No answer: too few machines")
    service.unavailable = ""
    answers(service, "Whole.")
    browser.click("Try again")
    browser.wait_for_answers("Whole.")

    def fails_at_once(generation):
        generation.say(*words("half"))
        generation.fail(PeerLost(2, "step 3", "its process ended"))

    service.script = fails_at_once
    for number in range(1, 6):
        browser.say("Go")
        browser.wait(lambda number=number: len(browser.texts(".answer .error")) == number)
    reasons = set(browser.texts(".answer .error"))
    assert reasons == {"Answer cut off: node 2 was lost during step 3: its process ended"}


def test_answer_that_reached_its_limit_continues(browser, service, url):
    begun = answers(service, "Once upon", "length")
    browser.open(url)
    browser.say("A story")
    browser.wait_for_text(".answer", "The answer reached its length limit.")
    service.generations.get(timeout=LIMIT_S)
    answers(service, " a time.")
    browser.run(
        "const f = fetch; window.fetch = (to, how) => f(to, (how.body && (window.sent = how.body), how))"
    )
    browser.click("Continue")
    browser.wait_for_answers("Once upon a time.")
    assert json.loads(browser.run("return window.sent"))["continue_final_message"] is True
    assert prompt_of(service) == f"<user>A story<assistant>{begun}"
    browser.wait(lambda: browser.see(".facts"))
    count = sum(len(service.tokenizer.encode(text, add_special=False)) for text in ("Once upon", " a time."))
    assert f"{count} tokens" in browser.text(".facts")
    assert not browser.see(".versions")
    assert "Continue" not in browser.text(".answer")
    service.max_sequence = 8
    browser.say("And then?")
    browser.wait_for_text(".answer", "No answer: this conversation is too long for the model.")
    assert "context" not in browser.text("main")


def test_answer_that_filled_the_context_does_not_continue(browser, service, serve, words):
    service.max_sequence = len(words("<user>A story")) + len(words("Once upon"))
    answers(service, "Once upon", "length")
    browser.open(serve().url)
    browser.say("A story")
    browser.wait_for_text(".answer", "The model's context is full.")
    assert "Continue" not in browser.text(".answer")


def test_chosen_model_answers_in_its_conversation_and_in_new_ones(browser, service, url):
    service.also_called = ("babbler:1b",)
    service.others = [
        replace(service.model(), name="phi", also_called=("phi:3b", "babbler"), digest="pack-2")
    ]
    browser.shape(320, 640)
    answers(service, "Hm.", "length")
    browser.open(url)
    browser.say("With babbler")
    browser.wait_for_text(".answer", "Continue")
    browser.click("Show conversations")
    browser.click("New chat")
    browser.wait(lambda: browser.see(".welcome"))
    browser.run("document.querySelector('.model').focus()")
    assert browser.focused() == "Model"
    assert browser.run("return [...document.activeElement.options].map(e => e.value)") == ["babbler", "phi"]
    browser.press(Keys.ARROW_DOWN)
    browser.wait_for_text(".welcome", "phi, on your own machines.")
    assert browser.outside() == [0, 0, 0]
    assert browser.flaws() == []
    browser.say("With phi")
    browser.wait_for_text(".answer", "Continue")
    browser.reload()
    browser.run("location.hash = '#chat'")
    browser.wait_for_text(".welcome", "phi, on your own machines.")
    browser.click("Show conversations")
    browser.click("With babbler")
    browser.wait(
        lambda: (
            browser.see(".answer")
            and browser.run("return document.querySelector('.model').value") == "babbler"
        )
    )
    assert not browser.see(".own-sign")
    service.others = [replace(service.others[0], context_tokens=8)]  # which this conversation has passed
    browser.reload()
    browser.wait_for_text(".answer", "Continue")
    browser.type(".model", "phi")
    browser.wait_for_text(".answer", "The model's context is full.")
    assert [service.generations.get(timeout=LIMIT_S).request.pack for _ in range(2)] == ["pack-1", "pack-2"]
    service.others = []
    browser.reload()
    browser.wait_for_text(".notice", "phi is not offered any more: babbler answers.")
    browser.say("Again")
    browser.wait_for_answers("Hm.", "Hm.")
    assert service.generations.get(timeout=LIMIT_S).request.pack == "pack-1"


def test_conversations_are_exported_deleted_together_and_imported(browser, service, url, tmp_path):
    listed = hold_two_conversations(browser, service, url)
    browser.downloads_to(tmp_path)
    browser.click("Export")
    browser.wait(lambda: list(tmp_path.glob("*.json")))
    [file] = tmp_path.glob("*.json")
    browser.click("Delete all")
    browser.wait_for_text("dialog", "Delete 2 conversations?")
    assert browser.flaws() == []
    browser.click("Delete", "dialog")
    browser.wait(lambda: not browser.texts(listed))
    browser.run("window.requestAnimationFrame = () => 0")  # the list comes with the notice, not a frame later
    browser.attach("[type=file]", file)
    browser.wait_for_text(".conversations-tools", "2 conversations imported.")
    assert browser.texts(listed) == ["About bears", "About foxes"]
    browser.reload()
    browser.click("About foxes")
    browser.wait_for_answers("Hm.")
    browser.attach("[type=file]", file)
    browser.wait_for_text(".conversations-tools", "0 conversations imported; 2 already here.")
    assert browser.flaws() == []
    file.write_text("{}")
    browser.attach("[type=file]", file)
    browser.wait_for_text(".conversations-tools", "This file has no conversations of tpiedge")
    assert browser.flaws() == []


def test_formulas_are_drawn_and_loaded_only_when_needed(browser, service, serve):
    service.max_sequence = 4096
    loads = "return performance.getEntriesByType('resource').filter(one => one.name.includes('temml')).length"
    answers(service, "No **formula** here, and it costs $5.")
    browser.open(serve().url)
    browser.say("Words")
    browser.wait(lambda: browser.see(".markdown strong"))
    assert browser.run(loads) == 0
    answers(service, FORMULAS)
    browser.say("Formulas")
    browser.wait(lambda: len(browser.run("return [...document.querySelectorAll('math')]")) == 4)
    assert browser.run(loads) == 1
    assert browser.run("return document.querySelector('math').textContent") == "x1∗y1"
    assert browser.texts(".maths") == [r"\(\frac{1}{\)"], "what is no TeX stays as it is"
    assert browser.see("[aria-label=Formula] mtable")
    assert browser.see("math msup mi")
    answers(service, r"Words before \(x\kern-4em y\)")
    browser.say("A negative space")
    browser.wait(lambda: len(browser.run("return [...document.querySelectorAll('math')]")) == 5)
    assert (
        browser.run(
            "const { x, y } = [...document.querySelectorAll('math mi')].at(-1).getBoundingClientRect();"
            "return document.elementFromPoint(x + 2, y + 2).localName"
        )
        == "p"
    ), "it covers no words"
    assert browser.run("return window.hit ?? null") is None
    assert browser.flaws() == []
    browser.shape(390, 844, touch=True)
    browser.draw()
    assert browser.outside() == [0, 0, 0]


def test_reasoning_is_collapsed_by_default(browser, url):
    deltas = [{"reasoning_content": "It is"}, {"reasoning_content": " <b>easy</b>."}, {"content": "Four."}]
    said = "".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas)
    browser.open(url)
    browser.run(
        "const [text] = arguments; window.fetch = async () => new Response(text)", f"{said}data: [DONE]\n\n"
    )
    browser.say("2+2?")
    browser.wait_for_answers("Four.")
    assert not browser.see(".reasoning[open]")
    browser.click("Thoughts")
    browser.wait(lambda: browser.see(".reasoning[open]"))
    assert browser.text(".reasoning .said") == "It is <b>easy</b>."
    assert browser.flaws() == []


def test_page_asks_for_a_valid_api_key_once(browser, service, serve):
    answers(service, "Yes.")
    browser.open(serve(keys=["sk-right"]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press("sk-wrong", Keys.ENTER)
    browser.wait_for_text("dialog[open]", "This key is not valid.")
    browser.wait(lambda: browser.focused() == "API key")
    browser.press("sk-right", Keys.ENTER)
    browser.wait_for_text(".model", "babbler")
    assert not browser.see("dialog[open]")
    browser.reload()
    browser.wait_for_text(".model", "babbler")
    browser.say("Well?")
    browser.wait_for_answers("Yes.")
    assert "sk-right" not in browser.run("return JSON.stringify(localStorage) + document.cookie")


def test_chat_is_usable_by_keyboard_alone(browser, service, url):
    answers(service, "Yes.")
    browser.open(url)
    browser.wait(lambda: browser.focused() == "Message")
    browser.press("Well?", Keys.SHIFT + Keys.ENTER, "Then?", Keys.ENTER)
    browser.wait_for_answers("Yes.")
    assert browser.texts(".question .said") == ["Well?\nThen?"]
    browser.run("document.activeElement.blur()")
    names = []
    for _ in range(20):
        browser.press(Keys.TAB)
        names.append(browser.focused())
    assert {
        "Skip to content",
        "New chat",
        "Settings",
        "Copy",
        "Edit",
        "Regenerate",
        "Message",
    } <= set(names)
