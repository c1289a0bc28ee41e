"""What a person does in the page's chat: asks, reads along, stops, asks otherwise, comes again."""

import json

import httpx

from tests.browsing.browser import Keys
from tests.http.conftest import answers
from tpiedge.api.service import Reading
from tpiedge.errors import PeerLost

LIMIT_S = 30.0


def prompt_of(service):
    """What the model was told for the next answer."""
    generation = service.generations.get(timeout=LIMIT_S)
    return service.tokenizer.decode(list(generation.request.prompt_ids))


def test_an_answer_is_read_while_it_is_made(browser, service, url, words):
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
    assert "3 of them cached" in facts
    browser.wait_for_text("[role=status]", "Answer: Once upon a time there was a fox.")


def test_an_answer_is_stopped(browser, service, url, words):
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


def test_what_was_said_is_told_again_and_the_settings_are_sent(browser, service, url):
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


def test_settings_are_of_one_conversation_unless_new_chats_are_to_have_them(browser, service, url):
    def seed():
        browser.click("Settings")
        value = browser.run("return document.querySelector('#set-seed').value")
        browser.click("Done")
        return value

    answers(service, "Hm.")
    browser.open(url)
    browser.click("Settings")
    assert "For this conversation alone" in browser.text("dialog")
    browser.type("#set-seed", "4")
    browser.click("Done")
    browser.say("About foxes")
    browser.wait_for_answers("Hm.")
    assert seed() == "4"
    browser.click("New chat")
    browser.wait(lambda: not browser.answers())
    assert seed() == ""
    browser.click("About foxes")
    browser.wait_for_answers("Hm.")
    browser.click("Settings")
    browser.tick("New chats begin with these settings, too")
    browser.click("Done")
    browser.click("New chat")
    browser.wait(lambda: not browser.answers())
    assert seed() == "4"
    browser.reload()
    assert seed() == "4"


def test_a_wrong_setting_is_not_taken(browser, url):
    browser.open(url)
    browser.click("Settings")
    browser.type("#set-top_p", "2")
    browser.click("Done")
    assert browser.see("dialog.settings #set-top_p:invalid")


def test_another_answer_and_the_first_one_again(browser, service, url):
    answers(service, "One.")
    browser.open(url)
    browser.say("Say something")
    browser.wait_for_answers("One.")
    answers(service, "Two.")
    browser.click("Another answer")
    browser.wait_for_answers("Two.")
    assert browser.text(".versions") == "2 of 2"
    browser.click("Earlier version")
    browser.wait_for_answers("One.")
    browser.click("Later version")
    browser.wait_for_answers("Two.")
    first, second = prompt_of(service), prompt_of(service)
    assert first == second == "<user>Say something"


def test_an_edited_message_begins_a_branch(browser, service, url):
    answers(service, "Red.")
    browser.open(url)
    browser.say("A colour?")
    browser.wait_for_answers("Red.")
    browser.say("More")
    browser.wait_for_answers("Red.", "Red.")
    answers(service, "Oak.")
    browser.run("document.querySelector('.question .tools').style.opacity = 1")
    browser.click("Edit", ".question")
    browser.wait(lambda: browser.focused() == "Edit the message")
    browser.press(Keys.CONTROL + "a", "A tree?", Keys.CONTROL + Keys.ENTER)
    browser.wait_for_answers("Oak.")
    assert browser.texts(".question .said") == ["A tree?"]
    assert [prompt_of(service) for _ in range(3)][-1] == "<user>A tree?"
    browser.click("Earlier version", ".question")
    browser.wait_for_answers("Red.", "Red.")


def test_conversations_stay_and_are_renamed_and_deleted(browser, service, url):
    answers(service, "Hm.")
    browser.open(url)
    for question in ("About foxes", "About bears"):
        browser.click("New chat")
        browser.wait(lambda: not browser.answers())
        browser.say(question)
        browser.wait_for_answers("Hm.")
    listed = ".conversations li a"
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


def test_an_old_conversation_is_found_by_what_was_said_in_it(browser, service, url):
    answers(service, "Hm.")
    browser.open(url)
    for number in range(8):
        browser.click("New chat")
        browser.wait(lambda: not browser.answers())
        browser.say("About foxes, and Bears" if number == 2 else f"Number {number}")
        browser.wait_for_answers("Hm.")
    browser.type("[type=search]", "bears")
    browser.wait(lambda: browser.texts(".conversations li a") == ["About foxes, and Bears"])
    assert browser.flaws() == []
    browser.type("[type=search]", "?")
    browser.wait_for_text(".conversations", "No conversation has that.")


def test_an_answer_goes_on_while_another_conversation_is_shown(browser, service, url, words):
    browser.open(url)
    browser.say("Long")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("begun"))
    browser.wait_for_text(".answer", "begun")
    browser.click("New chat")
    browser.wait(lambda: not browser.answers())
    generation.say(*words(" and done"))
    generation.finish("stop")
    browser.click("Long")
    browser.wait_for_answers("begun and done")


def test_what_was_typed_waits_in_its_conversation(browser, service, url):
    answers(service, "Hm.")
    browser.open(url)
    browser.say("About foxes")
    browser.wait_for_answers("Hm.")
    typed = "return document.querySelector('#message').value"
    browser.type("#message", "and bears")
    browser.click("New chat")
    browser.wait(lambda: not browser.answers())
    assert browser.run(typed) == ""
    browser.click("About foxes")
    browser.wait(lambda: browser.run(typed) == "and bears")
    browser.press(Keys.ENTER)
    browser.wait_for_answers("Hm.", "Hm.")
    assert browser.run(typed) == ""


def test_why_an_answer_pauses(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("first"))
    generation.pause("waiting for dell-1: its process ended")
    browser.wait_for_text(".progress", "The answer pauses: waiting for dell-1: its process ended")
    browser.wait_for_text("[role=status]", "waiting for dell-1")
    generation.resume(1.5)
    generation.say(*words(" last"))
    generation.finish("stop")
    browser.wait_for_answers("first last")
    assert "paused for 1.5 s" in browser.text(".facts")


def test_an_answer_that_fails(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("half"))
    browser.wait_for_text(".answer", "half")
    generation.fail(PeerLost(2, "step 3", "its process ended"))
    browser.wait_for_text(".answer", "The answer broke off: node 2 was lost during step 3: its process ended")
    service.unavailable = "too few machines"
    browser.click("Try again")
    browser.wait_for_text(".answer", "No answer: too few machines")
    service.unavailable = ""
    answers(service, "Whole.")
    browser.click("Try again")
    browser.wait_for_answers("Whole.")


def test_why_an_answer_fails_is_read_though_its_connection_breaks_at_once(browser, service, url, words):
    def script(generation):
        generation.say(*words("half"))
        generation.fail(PeerLost(2, "step 3", "its process ended"))

    service.script = script
    browser.open(url)
    for number in range(1, 6):
        browser.say("Go")
        browser.wait(lambda number=number: len(browser.texts(".answer .error")) == number)
    reasons = set(browser.texts(".answer .error"))
    assert reasons == {"The answer broke off: node 2 was lost during step 3: its process ended"}


def test_after_an_answer_that_did_not_come_the_talk_goes_on(browser, service, url):
    service.unavailable = "too few machines"
    browser.open(url)
    browser.say("Well?")
    browser.wait_for_text(".answer", "No answer: too few machines")
    service.unavailable = ""
    answers(service, "Yes.")
    browser.say("And now?")
    browser.wait_for_answers("", "Yes.")
    assert prompt_of(service) == "<user>Well?<assistant><user>And now?"


def test_what_a_model_thought_is_folded_away(browser, url):
    deltas = [{"reasoning_content": "It is"}, {"reasoning_content": " <b>easy</b>."}, {"content": "Four."}]
    said = "".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas)
    browser.open(url)
    browser.run(
        "const [text] = arguments; window.fetch = async () => new Response(text)", f"{said}data: [DONE]\n\n"
    )
    browser.say("2+2?")
    browser.wait_for_answers("Four.")
    assert not browser.see(".thought[open]")
    browser.click("Thoughts")
    browser.wait(lambda: browser.see(".thought[open]"))
    assert browser.text(".thought .said") == "It is <b>easy</b>."


def test_a_server_that_is_gone(browser, service, serve):
    server = serve()
    answers(service, "Here.")
    browser.open(server.url)
    browser.say("Hello?")
    browser.wait_for_answers("Here.")
    server.close()
    browser.say("Still there?")
    browser.wait_for_text(".answer:last-of-type", "No answer: The server cannot be reached.")


def test_an_answer_that_was_under_way_when_the_page_was_closed(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("half"))
    browser.wait_for_text(".answer", "half")
    browser.reload()
    browser.wait_for_text(".answer", "Interrupted when the page was closed.")
    assert generation.cancelled.wait(LIMIT_S)


def test_the_key_is_asked_for_only_where_it_is_needed(browser, service, serve):
    answers(service, "Yes.")
    browser.open(serve(keys=["sk-right"]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press("sk-wrong", Keys.ENTER)
    browser.wait_for_text("dialog[open]", "The server does not know this key.")
    browser.wait(lambda: browser.focused() == "API key")
    browser.press("sk-right", Keys.ENTER)
    browser.wait_for_text(".model", "babbler")
    assert not browser.see("dialog[open]")
    browser.reload()
    browser.wait_for_text(".model", "babbler")
    browser.say("Well?")
    browser.wait_for_answers("Yes.")
    assert "sk-right" not in browser.run("return JSON.stringify(localStorage) + document.cookie")


def test_without_the_key_the_page_says_what_is_missing(browser, serve):
    browser.open(serve(keys=["sk-right"]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press(Keys.ESCAPE)
    browser.wait_for_text(".problem", "Without the API key there is no answer")


def test_the_keyboard_is_enough(browser, service, url):
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
        "Skip to the content",
        "New chat",
        "Settings",
        "Copy",
        "Edit",
        "Another answer",
        "Message",
    } <= set(names)


def test_a_phone(browser, service, url):
    answers(service, "A " + "word" * 60 + " `" + "code" * 60 + "`\n\n```\n" + "x" * 300 + "\n```")
    browser.shape(320, 640, touch=True)
    browser.open(url)
    browser.say("Something wide")
    browser.wait(lambda: browser.see(".facts"))
    assert browser.run("return document.documentElement.scrollWidth") <= 320
    small = browser.run(
        "return [...document.querySelectorAll('button, nav a')].filter(e => e.getClientRects().length)"
        ".map(e => [e.innerText, e.getBoundingClientRect()]).filter(([, r]) => r.width < 44 || r.height < 44)"
    )
    assert small == []
    browser.click("Show the conversations")
    browser.wait(lambda: browser.focused() == "New chat")
    browser.press(Keys.ESCAPE)
    browser.wait(lambda: not browser.see(".conversations"))
    browser.click("Show the conversations")
    browser.click("Something wide")
    browser.wait(lambda: not browser.see(".conversations"))


def test_the_page_is_there_without_a_network_of_its_own(browser, service, url):
    """Everything that it loads comes from the server."""
    answers(service, "```python\nprint(1)\n```")
    browser.open(url)
    browser.say("Code, please")
    browser.wait(lambda: browser.see(".code .hljs-built_in"))
    loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert {httpx.URL(one).port for one in loaded} == {httpx.URL(url).port}


def test_how_far_a_long_prompt_is_read(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.tell(Reading(300, 900, 150.0, 3.2))
    browser.wait_for_text(".progress", "Reading the prompt … 300 of 900 tokens, 4 s left")
    generation.say(*words("Gone"))
    generation.finish("stop")
    browser.wait_for_answers("Gone")
