"""The chat page in a browser, over a server that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import DESKTOP, PHONE, Visit, Visitor
from tests.server.running import RunningServer, running
from tests.server.tiny_model import load_tiny

SLOW_STEP_S = 0.02  # so that a stream can be seen to be one
KEY = "open-sesame"


@pytest.fixture(scope="module")
def server(tiny_folder: Path) -> Iterator[RunningServer]:
    """Its steps take long enough to be watched, and no answer ends by itself before the context
    does."""
    llm = load_tiny(tiny_folder)
    llm.engine._eos_token_ids = frozenset()
    execute = llm.engine.executor.execute

    def slowly(*given: object) -> object:
        time.sleep(SLOW_STEP_S)
        return execute(*given)  # type: ignore[arg-type]

    llm.engine.executor.execute = slowly  # type: ignore[method-assign, assignment]
    with running(llm) as server:
        yield server
        stats = server.at_rest()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


on_both_sizes = pytest.mark.parametrize(
    "page", [DESKTOP, PHONE], ids=["desktop", "phone"], indirect=True
)


@pytest.fixture
def page(request: pytest.FixtureRequest, server: RunningServer, visit: Visitor) -> Iterator[Visit]:
    """The page, loaded; behind a test it must have had nothing to complain of, asked nobody else
    and stayed within the screen."""
    visited = visit(server.url, size=getattr(request, "param", DESKTOP))
    until(lambda: visited.page.input_value("#model") != "", "no model is listed")
    yield visited
    assert visited.complaints == []
    assert visited.foreign_requests() == []
    visited.assert_fits_width()


def ask(visited: Visit, question: str) -> None:
    visited.page.fill("#text", question)
    visited.page.keyboard.press("Enter")


def until(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def answer(visited: Visit) -> str:
    return visited.page.locator(".turn.assistant").last.inner_text()


@on_both_sizes
def test_an_answer_streams_and_can_be_stopped(page: Visit, server: RunningServer) -> None:
    ask(page, "a question")
    assert page.page.locator(".turn.user").inner_text() == "a question"
    assert page.page.input_value("#text") == ""
    lengths: list[int] = []

    def grew_often() -> bool:
        length = len(answer(page))
        if not lengths or length > lengths[-1]:
            lengths.append(length)
        return len(lengths) > 6

    until(grew_often, "the answer does not grow")
    assert page.page.inner_text("#send") == "Stop"
    page.page.click("#send")
    page.page.wait_for_selector(".turn.note")
    assert page.page.inner_text("#send") == "Send"
    assert "finish: stopped" in page.page.inner_text(".turn.note")
    server.at_rest()  # to stop is to abort: nobody computes what nobody reads
    length = len(answer(page))
    time.sleep(0.2)
    assert len(answer(page)) == length


@on_both_sizes
def test_the_blocks_of_the_answer_are_drawn_while_it_runs(page: Visit) -> None:
    """In the colour that the key gives this answer, and no more once it has ended."""
    mine = "getComputedStyle(document.documentElement).getPropertyValue('--mine').trim()"
    count = f"""() => {{
        const canvas = document.querySelector('#blocks');
        const context = canvas.getContext('2d');
        const probe = document.createElement('canvas').getContext('2d');
        probe.fillStyle = {mine};
        probe.fillRect(0, 0, 1, 1);
        const wanted = probe.getImageData(0, 0, 1, 1).data.join();
        let found = 0;
        for (let y = 3; y < canvas.height; y += 8)
            for (let x = 3; x < canvas.width; x += 8)
                found += context.getImageData(x, y, 1, 1).data.join() === wanted;
        return found;
    }}"""
    ask(page, "a question")
    counts: list[int] = []

    def grows() -> bool:
        counts.append(page.page.evaluate(count))
        return max(counts) >= 4

    # That its canvas is read is the test's doing.
    until(grows, "no blocks are drawn in the answer's colour")
    assert page.page.locator("#batch tr").count() == 1
    assert page.page.locator("#batch td").first.inner_text().startswith("chatcmpl-")
    assert "1 running" in page.page.inner_text("#state")
    page.page.click("#send")
    until(lambda: page.page.evaluate(count) == 0, "blocks stay drawn")
    until(lambda: "0 running" in page.page.inner_text("#state"), "it stays running")
    page.complaints[:] = [one for one in page.complaints if "willReadFrequently" not in one]
    assert page.page.locator("#batch tr").count() == 0


def test_blocks_of_others_are_seen_too(page: Visit, server: RunningServer) -> None:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 60, "ignore_eos": True}
    other = threading.Thread(
        target=server.http.post, args=("/v1/completions",), kwargs={"json": body}
    )
    other.start()
    page.page.wait_for_selector("#batch td")
    assert page.page.locator("#batch td").first.inner_text().startswith("cmpl-")
    other.join()


def test_a_conversation_goes_on_and_a_new_one_forgets_it(page: Visit) -> None:
    sent: list[str] = []
    page.page.on("request", lambda one: sent.append(one.post_data or ""))
    for number in (1, 2):
        ask(page, f"question {number}")
        until(lambda: answer(page) != "", "no answer")
        page.page.click("#send")
        until(lambda n=number: page.page.locator(".turn.note").count() == n, "no note")
    (second,) = [one for one in sent if "question 2" in one]
    assert "question 1" in second
    page.page.click("#clear")
    assert page.page.locator(".turn").count() == 0
    ask(page, "question 3")
    until(lambda: answer(page) != "", "no answer")
    page.page.click("#send")
    page.page.wait_for_selector(".turn.note")
    (last,) = [one for one in sent if "question 3" in one]
    assert "question 1" not in last


@on_both_sizes
def test_everything_can_be_done_from_the_keyboard(page: Visit, server: RunningServer) -> None:
    """Every control is reached by Tab, and shows that it has been."""
    keyboard = page.page.keyboard
    reached = []
    for _ in range(8):
        keyboard.press("Tab")
        found = page.page.evaluate(
            "[document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.append(found[0])
        if found[0]:
            assert found[1] != "none", f"{found[0]} has the focus and does not show it"
    assert [one for one in reached if one][:6] == [
        "model", "temperature", "key", "clear", "text", "send",
    ]  # fmt: skip
    page.page.focus("#text")
    keyboard.type("one")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    assert page.page.input_value("#text") == "one\ntwo"
    keyboard.press("Enter")
    until(lambda: answer(page) != "", "no answer")
    assert page.page.locator(".turn.user").inner_text() == "one\ntwo"
    keyboard.press("Escape")
    page.page.wait_for_selector(".turn.note")
    server.at_rest()


def test_what_a_model_or_a_user_writes_is_text(page: Visit) -> None:
    ask(page, "<img src=x onerror=\"document.title='hacked'\"><b>bold</b>")
    until(lambda: answer(page) != "", "no answer")
    page.page.click("#send")
    page.page.wait_for_selector(".turn.note")
    assert page.page.locator(".turn b, .turn img").count() == 0
    assert page.page.title() == "infra-lab"


def test_an_error_is_shown_and_the_next_question_is_answered(page: Visit) -> None:
    page.page.fill("#temperature", "-1")
    ask(page, "a question")
    page.page.wait_for_selector(".turn.error")
    assert "temperature" in page.page.inner_text(".turn.error")
    page.page.fill("#temperature", "0.5")
    ask(page, "another")
    until(lambda: answer(page) != "", "no answer")
    page.page.click("#send")
    page.page.wait_for_selector(".turn.note")
    # The browser itself notes every answer with a status of 400; nothing else may be there.
    assert all("status of 400" in one for one in page.complaints)
    page.complaints.clear()


@on_both_sizes
def test_a_long_word_does_not_widen_the_page(page: Visit) -> None:
    ask(page, "w" * 400)
    until(lambda: answer(page) != "", "no answer")
    page.page.click("#send")
    page.page.wait_for_selector(".turn.note")
    page.assert_fits_width()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(
    server: RunningServer, visit: Visitor, scheme: str
) -> None:
    """WCAG 2.1, 1.4.3: 4.5 to 1 for text of this size."""
    visited = visit(server.url, color_scheme=scheme)
    visited.page.evaluate("['user','note','error'].forEach((kind) => show(kind, 'words'))")
    ratio = """(selector) => {
        const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const rgb = (colour) => {
            probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
            return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
        };
        const light = (colour) => rgb(colour).map((value) => value / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const text = light(getComputedStyle(document.querySelector(selector)).color);
        const sheet = document.createElement('div');
        sheet.style.background = 'Canvas';
        document.body.append(sheet);
        const ground = light(getComputedStyle(sheet).backgroundColor);
        return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    }"""
    for selector in (".user", ".note", ".error", "#state", "th"):
        assert visited.page.evaluate(ratio, selector) >= 4.5, (selector, scheme)


def test_a_key_is_asked_for_and_opens_the_door(tiny_folder: Path, visit: Visitor) -> None:
    with running(load_tiny(tiny_folder), api_keys=(KEY,)) as server:
        visited = visit(server.url)
        visited.page.wait_for_selector(".turn.error")
        assert "no valid API key" in visited.page.inner_text(".turn.error")
        visited.page.fill("#key", KEY)
        visited.page.keyboard.press("Tab")
        until(lambda: visited.page.input_value("#model") != "", "no model is listed")
        ask(visited, "a question")
        visited.page.wait_for_selector(".turn.note", timeout=20_000)
        assert answer(visited)
        assert all("status of 401" in one for one in visited.complaints)
        assert visited.foreign_requests() == []
