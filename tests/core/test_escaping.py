"""Text from outside reaches a page or a file as text: what it says is shown, and none of it acts."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.charts import Line, Panel, draw_svg
from drkit.core.escaping import (
    escape_controls,
    escape_line,
    escape_markdown,
    escape_paragraph,
    page_templates,
)

HOSTILE = (
    "\x1b]0;t\x07\x1b[2J\x9b1m\u202e\r<script>x</script><img src=x onerror=y> [l](javascript:z) ![i](http://t/) |`c`"
)
ACTS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
anything = st.text() | st.text(alphabet="\x1b]0;[2J\x9b\u202e\r\n\t<>&\"'script/[](!)|`*_#+-=~$1. a\\:")


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))

    def handle_data(self, data):
        self.text += data


@given(anything)
def test_no_control_character_is_left(text):
    for escape in (escape_controls, escape_line, escape_markdown, escape_paragraph):
        assert not ACTS.search(escape(text)), escape
    assert "\n" not in escape_line(text) + escape_markdown(text)


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_ordinary_text_stays(text):
    assert escape_controls(text) == escape_line(text) == text


@given(st.recursive(anything, lambda inner: st.lists(inner) | st.dictionaries(anything, inner)))
def test_json_that_is_printed_stays_the_same_json(value):
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert json.loads(escape_controls(text)) == value


TEMPLATE = """<p title="{{ text }}">{{ text }}</p>
<script type="application/json">{{ [text, {text: text}] | spelled_out | tojson }}</script>"""


@given(anything)
def test_a_template_shows_every_value_as_text(text):
    page = page_templates("drkit_report").from_string(TEMPLATE).render(text=text)
    found = Tags(page)
    assert found.tags == [("p", ("title",)), ("script", ("type",))]
    assert not ACTS.search(page)
    shown = escape_controls(text)
    data = re.search(r"<script[^>]*>(.*)</script>", page, re.DOTALL)[1]
    assert json.loads(data) == [shown, {shown: shown}]
    assert "<" not in data


def test_numbers_that_are_not_finite_are_null_for_a_browser():
    template = page_templates("drkit_report").from_string("{{ data | spelled_out | tojson }}")
    data = {"y": [float("nan"), float("inf"), -float("inf"), 0.5, 2], "n": {"mean": float("nan")}}
    assert json.loads(template.render(data=data), parse_constant=pytest.fail) == {
        "y": [None, None, None, 0.5, 2],
        "n": {"mean": None},
    }


@given(anything)
def test_markdown_has_only_its_own_marks(text):
    paragraph = escape_paragraph(text)
    for line in (escape_markdown(text), paragraph):
        plain = re.sub(r"\\.", " ", line)  # what is not behind a backslash
        assert not re.search(r"[`\[\]|$~]|<[A-Za-z/!?]|&(?!lt;|amp;)[A-Za-z#]|://", plain), line
        assert not re.search(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\*[^\s)]", plain), line
    assert not re.match(r"[#>+=*-]|\d+[.)](\s|$)", paragraph), paragraph


def test_ordinary_results_are_not_disfigured():
    for text in (
        "0.329 (p < 0.001*)",
        "nDCG@10",
        "retriever-1 & BM25",
        "no_pretraining",
        "* if p is below 0.05",
        "-0.5",
    ):
        assert escape_markdown(text) == text


@pytest.mark.parametrize("label", [HOSTILE, r"$\frac{$", "$x$"], ids=["hostile", "broken formula", "formula"])
def test_a_label_of_a_plot_is_not_a_formula(label):
    panel = Panel(label, label, [Line(label, [(0, 1.0), (1, 2.0)]), Line("b", [(0, 1.0), (1, 2.0)])])
    assert draw_svg(panel).startswith("<svg")
