"""The page of `drkit report` in a real browser: no error, no request, and every control does what it says."""

import shutil
from itertools import pairwise

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `browser`)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page's text in the browser; afterwards, it must have logged no error and requested nothing."""
    seen, context = [], browser.new_context(viewport={"width": 1200, "height": 900})

    def opened(text):
        file = tmp_path / "page.html"
        file.write_text(text)
        page = context.new_page()
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: asked.url == file.as_uri() or seen.append(f"request: {asked.url}"))
        page.goto(file.as_uri())
        page.wait_for_selector(".plot svg", state="attached")
        return page

    yield opened
    context.close()
    assert not seen


@pytest.mark.parametrize("name", ["one", "several", "hostile"])
def test_all_charts_are_drawn(show, pages, name):
    page = show(pages[name])
    for part in page.locator("details.run").all():
        part.locator("summary").first.click()
    assert page.locator(".plot svg").count() == page.locator(".plot").count() > 3
    page.wait_for_function(
        "[...document.querySelectorAll('.plot svg')].every(s => s.getBoundingClientRect().width > 100)"
    )
    marks = page.evaluate("[...document.querySelectorAll('.plot svg')].map(s => s.querySelectorAll('path').length)")
    assert all(marks)


def test_nothing_of_a_hostile_text_runs(show, pages):
    page = show(pages["hostile"])
    for query in page.locator("details.query").all():
        query.locator("summary").click()
        query.locator(".sides").wait_for()
    assert page.locator(".hit").count() > 10
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert "</script><script>window.hacked = 1" in page.locator(".query .asked").first.inner_text()


def test_an_injected_script_would_not_run_and_a_request_would_not_leave(browser, pages, tmp_path):
    """The policy of the page, tried with what escaping should have prevented."""
    file = tmp_path / "page.html"
    bad = "<script>window.hacked = 1</script><img src='http://127.0.0.1:9/x' onerror='window.hacked = 2'>"
    file.write_text(pages["one"].replace("</main>", f"{bad}</main>"))
    page, sent = browser.new_page(), []
    page.on("requestfinished", lambda asked: sent.append(asked.url))
    page.goto(file.as_uri())
    page.wait_for_selector(".plot svg", state="attached")
    assert page.evaluate("window.hacked") is None
    assert sent == [file.as_uri()]
    page.close()


def test_the_baseline_changes_the_table_and_the_queries(show, pages):
    page = show(pages["one"])
    bodies = page.locator("#table tbody:not([hidden])")
    assert bodies.count() == 1
    assert "baseline" in bodies.locator("tr", has_text="BM25").inner_text()
    page.select_option("#table .baseline", label="retriever-1")
    assert bodies.count() == 1
    assert "baseline" in bodies.locator("tr", has_text="retriever-1").inner_text()
    assert "retriever-1 \u2192" in page.locator("#query-count").inner_text()
    page.locator("details.query > summary").first.click()
    assert page.locator("details.query").first.locator(".sides h3").first.inner_text() == "retriever-1"


def shown(page):
    return page.locator("details.query .gain").all_inner_texts()


def numbers(texts):
    return [float(text.replace("\u2212", "-").replace("\u00b1", "")) for text in texts]


def test_queries_are_sorted_filtered_and_searched(show, pages):
    page = show(pages["one"])
    page.select_option("#query-system", label="retriever-1")
    gains = numbers(shown(page))
    assert len(gains) == 4
    assert gains == sorted(gains, reverse=True)
    page.select_option("#query-order", "drop")
    assert numbers(shown(page)) == sorted(gains)
    page.select_option("#query-order", "id")
    assert [text[:3] for text in page.locator(".query .asked").all_inner_texts()] == ["q16", "q17", "q18", "q19"]
    page.select_option("#query-order", "value")
    after = [float(text.split("\u2192")[1]) for text in page.locator(".query .values").all_inner_texts()]
    assert after == sorted(after)
    for kind, keeps in (("win", lambda g: g > 0), ("loss", lambda g: g < 0), ("tie", lambda g: g == 0)):
        page.select_option("#query-kind", kind)
        assert sorted(numbers(shown(page))) == sorted(filter(keeps, gains))
    page.select_option("#query-kind", "all")
    page.fill("#query-search", "TOPIC17 what")
    assert page.locator("details.query").count() >= 1
    assert any("topic17" in text for text in page.locator(".query .asked").all_inner_texts())
    page.fill("#query-search", "no passage says this")
    assert page.locator("details.query").count() == 0
    assert "0 of 0 queries" in page.locator("#query-count").inner_text()
    page.fill("#query-search", "")
    page.locator("#query-search").press("Enter")
    page.select_option("#query-measure", label="nDCG@10")
    assert page.locator("details.query").count() == 4


def test_passages_stand_side_by_side_with_their_judgements(show, pages):
    page = show(pages["one"])
    query = page.locator("details.query").first
    query.locator("summary").click()
    query.locator(".sides").wait_for()
    left, right = query.locator(".sides > div").all()[:2]
    assert left.bounding_box()["y"] == right.bounding_box()["y"]
    assert left.bounding_box()["x"] < right.bounding_box()["x"]
    assert query.locator(".hit.relevant").count() >= 1
    assert "relevant, grade" in query.locator(".hit.relevant").first.inner_text()
    page.set_viewport_size({"width": 390, "height": 800})
    assert left.bounding_box()["y"] < right.bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_more_queries_are_shown_on_demand(show, pages):
    page = show(pages["one"])
    assert page.locator("#query-more").is_hidden(), "all four are shown"
    page.evaluate("data.queries = Array.from({length: 60}, (_, i) => ({...data.queries[0], id: `q${i}`}))")
    page.select_option("#query-order", "id")
    assert page.locator("details.query").count() == 25
    page.click("#query-more")
    page.click("#query-more")
    assert page.locator("details.query").count() == 60
    assert page.locator("#query-more").is_hidden()


def colours(page):
    return page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
        " getComputedStyle(document.querySelector('.plot svg text')).fill]"
    )


def luminance(colour):
    red, green, blue = (int(part) for part in colour.strip("rgb()").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_page_is_readable_in_dark_mode_and_in_print(show, pages):
    page = show(pages["one"])
    for media, scheme, is_dark in (("screen", "light", False), ("screen", "dark", True), ("print", "dark", False)):
        page.emulate_media(media=media, color_scheme=scheme)
        paper, ink, label = map(luminance, colours(page))
        assert (paper < 60) == is_dark
        assert abs(paper - ink) > 150
        assert abs(paper - label) > 150, "the labels of charts follow"
    assert page.locator("nav").is_hidden(), "nothing to click in print"


def is_wider_than_the_window(page):
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.parametrize("name", ["one", "several", "hostile"])
def test_nothing_is_wider_than_a_telephone(show, pages, name):
    page = show(pages[name])
    page.set_viewport_size({"width": 400, "height": 800})
    page.locator("details.query > summary").first.click()
    page.locator(".hit").first.wait_for()
    assert not is_wider_than_the_window(page)


def test_a_long_text_leaves_room_for_the_others(show, pages):
    endless = "x" * 5000
    page = show(pages["one"].replace('"id": "d', f'"id": "{endless}d').replace('"id": "q', f'"id": "{endless}q'))
    page.set_viewport_size({"width": 400, "height": 800})
    heights = "(found) => found.map((one) => one.getBoundingClientRect().height)"
    assert max(page.locator("details.query").evaluate_all(heights)) < 250
    page.locator("details.query > summary").first.click()
    assert max(page.locator(".hit").evaluate_all(heights)) < 250
    assert max(page.locator(".hit .about").evaluate_all(heights)) < 120
    assert not is_wider_than_the_window(page)


def test_all_runs_are_printed_and_closed_again(show, pages):
    page = show(pages["several"])
    runs, opened = page.locator("details.run"), page.locator("details.run[open]")
    assert runs.count() == 4
    runs.nth(1).locator("summary").first.click()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.count() == 4
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.count() == 1


def test_links_and_closed_parts_open(show, pages):
    page = show(pages["several"])
    for link in page.locator("nav a").all():
        target = link.get_attribute("href")
        link.click()
        assert page.locator(target).is_visible(), target
    for part in page.locator("summary").all():
        if part.is_visible():
            part.click()
    assert page.locator("pre", has_text="[pretrain.decoders.main.masker]").first.is_visible()


def test_two_systems_are_drawn_against_each_other_over_all_queries(show, pages):
    page = show(pages["one"])
    data = page.evaluate("JSON.parse(document.getElementById('query-data').textContent)")
    counts = [int(text.split()[0]) for text in page.locator("#scatter circle title").all_text_contents()]
    assert sum(counts) == len(data["everything"][0]) > 0
    names = page.locator("#scatter svg").get_attribute("aria-label")
    page.select_option("#query-system", "1")
    assert data["systems"][1] in page.locator("#scatter svg").get_attribute("aria-label") != names


def test_what_scrolls_is_reached_by_the_keyboard_and_headings_skip_no_level(show, pages):
    page = show(pages["one"])
    for part in page.locator(".scroll").all():
        assert (part.get_attribute("tabindex"), part.get_attribute("role")) == ("0", "region")
        assert part.get_attribute("aria-label")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("name", ["one", "several", "hostile"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_page_and_what_scrolls_says_so(show, pages, name, width):
    page = show(pages[name])
    page.set_viewport_size({"width": width, "height": 900})
    for part in page.locator("details:not(.query)").all():
        part.evaluate("part => { part.open = true; }")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide, said = (
        "[...document.querySelectorAll('.scroll, .plot')].filter(one => one.scrollWidth > one.clientWidth + 1).length",
        "document.querySelectorAll('.goes-on').length",
    )
    assert page.evaluate(wide) == page.evaluate(said)
    assert width == 1280 or page.locator("#table .goes-on").count() == 1


def test_the_queries_open_on_the_composed_retriever_against_the_baseline(show, pages):
    page = show(pages["one"])
    assert "BM25 \u2192 retriever-1" in page.locator("#query-count").inner_text()
