"""The page in a real browser, beside a flow that goes on: what it shows, how it follows, keys, search, a phone.

Every request of the browser is watched: none leaves the server. With PAGE_SHOTS=DIR the pictures of docs/page.md are
drawn there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.faults.proxy import FaultProxy
from tests.page.lively_flow import LivelyFlow

from dataplane_client.client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.long, pytest.mark.timeout(1800)]
SHOTS = os.environ.get("PAGE_SHOTS")
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
HEIGHTS = {"desktop": 1080, "phone": 1500}
"""Of the pictures."""
TOO_WIDE = """[...document.querySelectorAll("main :is(table, .meter, .head)")].filter((one) => {
  const parent = one.parentElement, padding = parseFloat(getComputedStyle(parent).paddingRight);
  return one.getBoundingClientRect().right > parent.getBoundingClientRect().right - padding + 1;
}).map((one) => one.ariaLabel || one.innerText)"""
WITHIN_MS = 20_000


@pytest.fixture(scope="module")
def server(browser: object) -> Iterator[ServerThread]:
    limits = Limits(memory_bytes=4 << 20)
    server = ServerThread(ServerConfig(listen=("127.0.0.1:0",), http="127.0.0.1:0", limits=limits))
    with LivelyFlow(server.addresses[0]).running():
        yield server
    server.stop()


class Opened:
    """The page, and what went wrong in it. requests: their addresses."""

    def __init__(self, browser: Any, server: ServerThread, viewport: dict[str, int], scheme: str) -> None:
        self.origin = f"http://{server.http_address}"
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WITHIN_MS)
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(self.origin)
        self.page.wait_for_selector("#flow tbody")

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def chosen(self) -> list[str]:
        return list(self.page.locator('[aria-pressed="true"]').all_inner_texts())

    def becomes(self, expression: str, *values: object) -> None:
        """Wait until a JavaScript expression holds."""
        self.page.wait_for_function(expression, arg=list(values))


@pytest.fixture
def open_page(browser: Any, server: ServerThread) -> Iterator[Any]:
    opened: list[Opened] = []

    def open_one(viewport: dict[str, int] = DESKTOP, scheme: str = "light") -> Opened:
        opened.append(Opened(browser, server, viewport, scheme))
        return opened[-1]

    yield open_one
    for one in opened:
        one.context.close()
        assert one.problems == []
        assert [url for url in one.requests if not url.startswith(f"{one.origin}/")] == []


def test_the_page_shows_the_flow_what_waits_and_why_and_follows_it(open_page: Any) -> None:
    one = open_page()
    assert one.page.locator(".choose").all_inner_texts() == ["eval", "judged", "rollouts", "tool-calls"]
    one.becomes("() => document.querySelectorAll('#waits li').length >= 3")  # a wait of two seconds is told
    waits = one.text("#waits")
    for words in (
        "judged \u203a train",
        "missing field",
        "56 of 64 untaken rows lack field 'verdict'",
        "claims held",
        "Next:",
    ):
        assert words in waits
    assert one.text("#status").startswith("serving")
    first = one.text('[data-key="rollouts"] .amount b')
    one.becomes("([before]) => document.querySelector('[data-key=rollouts] .amount b').innerText !== before", first)
    one.becomes("() => parseFloat(document.querySelector('#figures b').innerText) > 0")


def test_the_waits_follow_the_search_and_the_choice_and_are_not_hidden_in_a_scroll_area(open_page: Any) -> None:
    one = open_page()
    waits = "[...document.querySelectorAll('#waits > ul > li')]"
    others = f"() => {waits}.some((wait) => !wait.innerText.includes('judged'))"
    only_judged = f"() => {waits}.length > 0 && {waits}.every((wait) => wait.innerText.includes('judged'))"
    one.becomes(others)
    one.page.keyboard.press("/")
    one.page.keyboard.type("judged")
    one.becomes(only_judged)
    one.page.keyboard.press("Escape")
    one.becomes(others)
    one.page.click("[data-partition=judged]")
    one.becomes(only_judged)
    inner = "[...document.querySelectorAll('#waits, #waits *')].map((one) => getComputedStyle(one).overflowY)"
    assert {"auto", "scroll"}.isdisjoint(one.page.evaluate(inner))


def test_keys_choose_partitions_search_and_help(open_page: Any) -> None:
    one = open_page()
    keys = one.page.keyboard
    for key, chosen in (
        ("j", "eval"),
        ("j", "judged"),
        ("k", "eval"),
        ("k", "eval"),
        ("Escape", None),
        ("k", "tool-calls"),
    ):
        keys.press(key)
        assert one.chosen() == ([] if chosen is None else [chosen])
    assert one.page.evaluate("document.activeElement.dataset.partition") == "tool-calls"
    assert "call" in one.text("#details")
    keys.press("/")
    keys.type("prev")
    assert one.page.locator(".choose").all_inner_texts() == ["rollouts"]
    keys.press("Escape")
    keys.press("?")
    assert one.page.is_visible("#keys")
    keys.press("Escape")
    before = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
    keys.press("t")
    assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    keys.press("Tab")
    assert one.page.evaluate("document.activeElement !== document.body")


def test_a_sample_is_found_by_its_id_and_dead_letters_by_a_click(open_page: Any, server: ServerThread) -> None:
    one = open_page()
    one.page.keyboard.press("/")
    one.page.keyboard.type("j5")
    one.page.keyboard.press("Enter")
    one.page.wait_for_selector("#inspector td")
    story = one.text("#inspector")
    assert "grade: consumed" in story
    assert "judge-2" in story
    one.page.keyboard.press("Escape")
    one.page.click("text=3 dead")
    one.page.wait_for_selector("#inspector td")
    assert "the sandbox did not start: out of memory" in one.text("#inspector")
    one.page.click("#inspector td button")
    one.becomes("() => document.querySelector('#inspector').innerText.includes('dead letter')")


def test_an_answer_that_comes_late_does_not_replace_what_was_opened_since(open_page: Any) -> None:
    one = open_page()
    held: list[Any] = []
    one.page.route("**/page/sample?*id=j5*", lambda route: held.append(route))
    for sample in ("j5", "j4"):
        one.page.fill("#query", sample)
        one.page.press("#query", "Enter")
        one.page.wait_for_selector(f"#inspector h2:text('{sample}')")
        one.page.keyboard.press("Escape")
    with one.page.expect_response("**/page/sample?*id=j5*") as answered:
        held[0].continue_()
    answered.value.finished()
    one.page.evaluate("() => new Promise((passed) => setTimeout(passed, 300))")
    assert "j4" in str(one.page.text_content("#inspector h2"))


def test_no_call_is_said_to_have_taken_longer_than_the_server_has_been_up(open_page: Any) -> None:
    """Five calls in a bucket that ends after days, of a server that has just started."""
    one = open_page()
    told, up_s = one.page.evaluate("""async () => {
      const model = await import("/page/model.js");
      model.state.latencies = [{ at: model.now(), bounds: [60, 1e6], counts: { "PutSamples shm": [0, 5] } }];
      return [model.latencies(), model.now() - model.state.server.started];
    }""")
    assert [0 < seconds <= up_s + 1 for seconds in told[0][3:5]] == [True, True]


def test_elements_of_one_key_are_all_shown_again(open_page: Any) -> None:
    """As of two claims of one task that wait for the same cause."""
    shown = open_page().page.evaluate("""async () => {
      const { h, show } = await import("/page/dom.js");
      const list = h("div"), told = (words) => h("p", { "data-key": "a" }, words);
      for (let turn = 0; turn < 3; turn++) show(list, told("one"), told("two"));
      return list.textContent;
    }""")
    assert shown == "onetwo"


def test_names_from_clients_are_shown_as_text_and_break(open_page: Any, server: ServerThread) -> None:
    name = '<img src=x onerror="document.title=1">' + "x" * 200
    with connect(server.addresses[0], client_name=name) as client:
        client.register_partition(name, ["x"], 0, [name])
        one = open_page()
        one.page.locator(".choose", has_text="<img").click()
        one.page.locator("#details h2", has_text="<img").wait_for()
        assert one.page.title() == "RL Data Plane"
        assert one.page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
        client.drop_partition(name)
        one.page.locator(".choose", has_text="<img").wait_for(state="detached")


def test_a_page_says_what_to_do_first_and_follows_what_becomes_of_its_server(browser: Any) -> None:
    config = ServerConfig(listen=("127.0.0.1:0",), http="127.0.0.1:0", limits=Limits(memory_bytes=1 << 20))
    server = ServerThread(config)
    _call(server, 50)
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    network = FaultProxy(str(server.http_address))
    page.goto(f"http://{network.address}")
    page.wait_for_selector("#flow code")
    assert "No partition yet. A program registers one: client.register_partition(" in page.inner_text("#flow")
    network.swallow = {"answers"}
    network.close_silently("server")
    page.wait_for_selector("#status.offline")
    assert "cannot be reached" in page.inner_text("#notice")
    network.reset_connections()
    page.wait_for_selector("#status.serving")
    server.stop()
    page.wait_for_selector("#status.offline")
    server = ServerThread(replace(config, http=server.http_address))
    page.wait_for_selector("#status.serving")
    _call(server, 1)
    page.wait_for_selector("#more :text('ListPartitions')", timeout=WITHIN_MS)
    context.close()
    network.close()
    server.stop()


def _call(server: ServerThread, times: int) -> None:
    with connect(server.addresses[0]) as client:
        for _ in range(times):
            client.partitions()


def test_beside_an_access_file_the_page_asks_for_a_token_once(browser: Any, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    callers = [{"name": "engineer", "tokens": [f"sha256:{digest}"], "roles": {"reader": [""]}}]
    access = tmp_path / "access.json"
    access.write_text(json.dumps({"callers": callers}))
    local, limits = "127.0.0.1:0", Limits(memory_bytes=1 << 20)
    server = ServerThread(ServerConfig(listen=(local,), http=local, limits=limits, access=access))
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(f"http://{server.http_address}")
    for token, becomes in (("wrong", "#token[open]"), ("secret", "#status.serving")):
        page.wait_for_selector("#token[open]")
        page.keyboard.type(token)
        page.keyboard.press("Enter")
        page.wait_for_selector(becomes)
    page.reload()
    page.wait_for_selector("#flow code")
    assert not page.is_visible("#token")
    context.close()
    server.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "viewport"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_nothing_is_cut_off_at_the_width_of_a_desktop_or_a_phone(
    open_page: Any, name: str, viewport: dict[str, int], scheme: str
) -> None:
    one = open_page(viewport, scheme)
    one.page.click("text=rollouts")
    one.becomes("() => document.querySelectorAll('#details .meter').length > 5")
    assert one.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert one.page.evaluate(TOO_WIDE) == []


def test_a_rollout_is_shown_with_its_tokens_and_log_probabilities(open_page: Any) -> None:
    one = open_page()
    one.page.click("text=rollouts")
    _open_a_rollout(one)


def test_a_group_is_shown_with_the_rewards_and_texts_of_its_rollouts(open_page: Any) -> None:
    one = open_page()
    one.page.click("text=rollouts")
    _open_a_group(one)
    text = one.text("#inspector")
    assert [words for words in ("reward", "std", "train: ", "Anna has 12 apples") if words not in text] == []
    one.page.set_viewport_size(PHONE)
    one.becomes(
        "() => document.querySelector('#inspector').scrollWidth <= document.querySelector('#inspector').clientWidth"
    )
    one.page.locator("#inspector td button").first.click()
    one.becomes("() => document.querySelector('#inspector').innerText.includes('Story')")


def _open_a_group(one: Opened) -> None:
    """One that is still there and finished, with its eight rollouts."""
    text = ""
    while "finished" not in text:
        one.page.keyboard.press("r")
        one.page.locator("#inspector td button[data-rows]").last.click()
        one.page.wait_for_selector("#inspector .bars, #inspector .empty:not(:has-text('…'))")
        if "finished" not in (text := one.text("#inspector")):
            one.page.keyboard.press("Escape")
    assert one.page.locator("#inspector tr.note").count() == 8


def _open_a_rollout(one: Opened) -> None:
    """One that is still there, with both log-probabilities: the flow goes on."""
    text = ""
    while "ratio prev_logprobs" not in text:
        one.page.keyboard.press("r")
        one.page.locator("#inspector td button[data-sample]").nth(8).click()
        one.page.wait_for_selector("#inspector h3, #inspector [role=alert]")
        if "ratio prev_logprobs" not in (text := one.text("#inspector")):
            one.page.keyboard.press("Escape")
    assert one.page.locator(".tokens .in").count() > 0


@pytest.mark.skipif(not SHOTS, reason="PAGE_SHOTS=DIR draws the pictures of docs/page.md")
def test_pictures_for_the_documentation(open_page: Any) -> None:
    one = open_page()
    page = one.page
    page.wait_for_timeout(120_000)  # lines of some minutes
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.keyboard.press("Escape")  # no partition is chosen: all that waits is shown
        for name, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            page.set_viewport_size({**viewport, "height": HEIGHTS[name]})
            page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
            page.wait_for_timeout(1500)
            page.screenshot(path=Path(str(SHOTS)) / f"page-{name}-{scheme}.png")
        page.set_viewport_size(DESKTOP)
        page.click("text=rollouts")
        _open_a_rollout(one)
        page.screenshot(path=Path(str(SHOTS)) / f"page-sample-{scheme}.png")
        page.keyboard.press("Escape")
        _open_a_group(one)
        page.screenshot(path=Path(str(SHOTS)) / f"page-group-{scheme}.png")
        page.keyboard.press("Escape")
