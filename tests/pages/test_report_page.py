"""The page of `drkit report`: what it says is what the runs recorded, and texts of others stay text."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest

from drkit.charts import Bars, Intervals, Line, Panel, draw_svg
from drkit.commands import best_system, open_run
from drkit.core.files import FileEntry
from drkit.errors import DrkitError
from drkit.evaluate import Scores, bootstrap_intervals, compare, paired_t_test
from drkit.evaluate.names import system_name
from drkit.runs.manifest import load_manifest, read_manifest, write_manifest
from drkit.search import read_run
from drkit_report.charts import loss_panels
from drkit_report.comparison import compare_runs
from drkit_report.conclusion import conclude_run, describe_groups
from drkit_report.masking import describe_masking
from drkit_report.page import ReportOptions, collect_page, report_page
from drkit_report.systems import baseline_index, query_details, spread_over_gains, system_table, systems_of
from tests.pages.conftest import HOSTILE, PARTS
from tests.refusals import unknown
from tests.warm import drkit


class Page(HTMLParser):
    """Tags, attributes and visible text of a page, and its scripts by type."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.scripts, self._script = [], [], [], None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._script = dict(attributes).get("type", "code") if tag == "script" else self._script

    def handle_endtag(self, tag):
        self._script = None if tag == "script" else self._script

    def handle_data(self, data):
        if self._script is not None:
            self.scripts.append((self._script, data))
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def data(self, name):
        """The JSON of the script with an id."""
        ids = [attributes.get("id") for tag, attributes in self.tags if tag == "script"]
        return json.loads(self.scripts[ids.index(name)][1])


def test_the_page_says_what_was_composed(pages, runs):
    text = Page(pages["one"]).text
    parts = ("pmi", "enhanced", "contrastive", "pretrain.decoders.main.losses.mlm", "60 passages", "12 train queries")
    for part in parts:
        assert part in text
    assert f"retriever-1 {open_run(runs['seed-1'], PARTS).summaries['retriever-1']}" in text
    assert "what is topic16" not in text, "texts are in the section on queries alone"
    recipe = (runs["seed-1"] / "recipe.toml").read_text()
    folder = str(Path(open_run(runs["seed-1"], PARTS).recipe.collection.config.path).parent)
    assert folder in recipe
    assert folder not in pages["one"], "the author's folders"
    assert " ".join(recipe.replace(f"{folder}/", "").split()) in text, "the recipe that repeats the run"
    manifest = read_manifest(runs["seed-1"] / "evaluation")
    assert f"torch {manifest.versions['torch']}" in text
    assert manifest.machine["processor"] in text


def test_values_and_tests_are_those_of_the_evaluation(runs):
    (record,) = [open_run(runs["seed-1"], PARTS)]
    systems = systems_of([record])
    stored = {row["system"]: row["values"] for row in record.manifests["evaluation"].metrics["rows"]}
    table = system_table(systems, baseline_index(systems, "labels-only"))
    assert table.names[table.chosen] == "labels only"
    for measure in table.measures:
        for system, mean, (low, high) in zip(systems, table.means[measure], table.intervals[measure], strict=True):
            assert mean == pytest.approx(stored[system.system][measure])
            assert low <= mean <= high
    named = [(system.name, system.scores) for system in systems]
    ordered = [named[table.chosen], *named[: table.chosen], *named[table.chosen + 1 :]]
    for one in compare(ordered):
        row = next(row for row in table.bodies[table.chosen] if row.system == one.system)
        cell = row.cells[table.measures.index(one.measure)]
        assert cell.difference == f"{one.test.difference:+.3f}"
        assert bool(cell.verdict) == (one.corrected < 0.05)
        if one.measure == table.measures[0]:
            assert (row.wins, row.ties, row.losses) == (one.wins, one.ties, one.losses)
    assert all(not cell.difference for cell in table.bodies[table.chosen][table.chosen].cells)


def test_bootstrap_intervals_cover_the_mean_as_often_as_they_say():
    rng, hits, trials = np.random.default_rng(3), 0, 200
    for _ in range(trials):
        values = rng.random(80) ** 2
        (low, high), *_ = bootstrap_intervals([{str(i): v for i, v in enumerate(values)}], resamples=400)
        hits += low <= 1 / 3 <= high
    assert 0.89 <= hits / trials <= 0.99


def test_bootstrap_intervals_draw_the_same_queries_for_all_systems():
    values = {str(i): float(v) for i, v in enumerate(np.random.default_rng(0).random(30))}
    one, two = bootstrap_intervals([values, {key: value + 1 for key, value in values.items()}])
    assert two == pytest.approx([bound + 1 for bound in one])
    assert bootstrap_intervals([values]) == [pytest.approx(one)], "the same each time"
    assert bootstrap_intervals([]) == []
    with pytest.raises(DrkitError, match="different queries"):
        bootstrap_intervals([values, {"x": 1.0}])


def test_queries_show_the_rankings_and_judgements(runs):
    record = open_run(runs["seed-1"], PARTS)
    systems = systems_of([record])
    ids = spread_over_gains(systems, 0, 3)
    assert len(ids) == len(set(ids)) == 3
    details = query_details(systems, record.collection, "test", ids)
    for position, system in enumerate(systems):
        ranked = dict(read_run(record.systems[system.system].files[0]))
        for query_id in ids:
            judged = {j.doc_id: j.relevance for j in record.collection.judgements("test") if j.query_id == query_id}
            assert details.judged[query_id] == judged
            hits = details.hits[query_id][position]
            assert list(hits.top) == ranked[query_id][:5]
            found = [rank for rank, (doc_id, _) in enumerate(ranked[query_id], 1) if judged.get(doc_id, 0) > 0]
            assert hits.first_relevant == (found[0] if found else None)
            assert details.values[query_id][0][position] == system.scores.per_query["RR@10"][query_id]
    texts = {passage.doc_id: passage.content for passage in record.collection.corpus}
    assert all(text == texts[doc_id] for doc_id, text in details.passages.items())
    relevant = {doc_id for grades in details.judged.values() for doc_id, grade in grades.items() if grade > 0}
    assert relevant <= details.passages.keys(), "relevant passages are shown even if no system found them"


def test_queries_are_spread_over_the_gains_and_losses_of_every_system(runs):
    record = open_run(runs["seed-1"], PARTS)
    (base, *_) = systems_of([record])
    values = {f"q{i}": 0.5 for i in range(10)}

    def system(name, **changed):
        return attrs.evolve(base, name=name, scores=Scores({"RR@10": {**values, **changed}}))

    systems = [system("base"), system("a", q3=1.0, q4=0.0, q5=0.6), system("b", q6=0.9, q3=0.9)]
    # in turns: the best and the worst of a and of b (q3 is there already), then one where both are as the baseline
    assert spread_over_gains(systems, 0, 4) == ["q3", "q4", "q6", "q0"]
    assert spread_over_gains(systems, 0, 6) == ["q3", "q5", "q6", "q4", "q0", "q9"]
    assert len(spread_over_gains(systems, 0, 100)) == 10
    assert len(spread_over_gains(systems[:1], 0, 4)) == 4


def test_the_number_of_shown_queries_is_stated(runs):
    page = Page(report_page([runs["seed-1"]], PARTS, ReportOptions(queries=2)))
    assert "2 of 4 queries" in page.text
    assert len(page.data("query-data")["queries"]) == 2
    assert Page(report_page([runs["seed-1"]], PARTS, ReportOptions(queries=0))).data("query-data") is None


def test_curves_are_those_of_the_logs(runs):
    (run,) = collect_page([runs["seed-1"]], PARTS, ReportOptions()).runs
    gains = next(chart.drawing for chart in run.curves if chart.title == "Gain from the bottleneck")
    logged = [json.loads(line) for line in (runs["seed-1"] / "pretrained/probes.jsonl").read_text().splitlines()]
    assert gains.lines[0].points == [(one["step"], one["gain"]) for one in logged]
    assert len(logged) == 3


CURVES = [Line("one", [(0, 0.1), (1, 0.25)]), Line("two", [(0, 0.2)])]
DRAWN = [
    (Panel("t", "nats", CURVES), ["one", "two", "nats", "step"]),
    (Panel("t", "%", CURVES, x="", names=("first", "second")), ["one", "two", "%", "first", "second"]),
    (Bars("t", "share", ("a", "b"), {"pmi": (1, 2), "uniform": (2, 1)}), ["a", "b", "pmi", "uniform", "share"]),
    (Intervals("t", ("BM25", "hybrid"), {"R@1": [(0.5, 0.4, 0.6), (0.6, 0.5, 0.7)]}), ["BM25", "hybrid", "R@1"]),
]


@pytest.mark.parametrize(("chart", "texts"), DRAWN)
def test_a_chart_is_an_element_in_the_colours_of_the_page(chart, texts):
    svg = draw_svg(chart)
    assert svg == draw_svg(chart)
    drawn = ElementTree.fromstring(svg)
    assert {*texts} <= {"".join(one.itertext()).strip() for one in drawn.iter("{http://www.w3.org/2000/svg}text")}
    styles = " ".join(one.get("style", "") for one in drawn.iter())
    assert "var(--series-1)" in styles
    assert "var(--ink)" in styles
    assert not re.search("#(?!f{6})[0-9a-f]{6}", styles), "a colour that the style sheet does not know"
    assert "<style" not in svg
    assert "<!--" not in svg


@pytest.mark.parametrize("text", [HOSTILE, "--> <script>", '<g id="x">', "$x_1$"])
def test_the_names_of_a_chart_stay_text(text):
    lines = [Line(text, [(0, 1.0), (1, 2.0)]), Line("b", [(0, 1.0)])]
    bars = Bars(text, text, (text, "b"), {text: (1, 2), "b": (2, 1)})
    for chart in (Panel(text, text, lines, x=text), Panel(text, text, lines, names=(text, "b")), bars):
        drawn = ElementTree.fromstring(draw_svg(chart))
        shown = ["".join(one.itertext()) for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
        spelled = text.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
        assert any(" ".join(spelled.split()) in " ".join(one.split()) for one in shown)
        assert {one.tag.partition("}")[2] for one in drawn.iter()} <= {
            "svg",
            "g",
            "defs",
            "path",
            "use",
            "text",
            "tspan",
        }


def test_every_chart_of_a_page_is_drawn(pages):
    for page in pages.values():
        parsed = Page(page)
        plots = [attributes for tag, attributes in parsed.tags if attributes.get("class") == "plot"]
        assert len(plots) == sum(tag == "svg" for tag, _ in parsed.tags) > 3


def test_the_masker_is_compared_with_uniform_masking(runs):
    masking = describe_masking(open_run(runs["seed-1"], PARTS), PARTS)
    shares = {one.masker: one for one in masking.shares}
    assert set(shares) == {"pmi", "uniform", "all tokens of these texts"}
    assert float(shares["uniform"].hidden.rstrip("%")) == pytest.approx(50, abs=6)
    common = {name: float(one.common.rstrip("%")) for name, one in shares.items()}
    assert common["uniform"] == pytest.approx(common["all tokens of these texts"], abs=5)
    assert common["pmi"] < common["uniform"], "what PMI is for"
    assert len(masking.charts) == 3


def test_runs_that_differ_by_the_seed_share_a_row(runs):
    records = [open_run(runs[name], PARTS) for name in ("seed-1", "seed-2", "uniform")]
    found = compare_runs(records, records)
    assert [group.runs for group in found.groups] == [("seed-1", "seed-2"), ("uniform",)]
    assert found.settings == ("masker",)
    assert [group.differences for group in found.groups] == [("pmi",), ("uniform",)]
    values = [one.scores[one.results.compared].mean("RR@10") for one in records]
    assert found.groups[0].values[0] == f"{np.mean(values[:2]):.3f} \u00b1 {np.std(values[:2], ddof=1):.3f}"
    assert found.groups[1].values[0] == f"{values[2]:.3f}"


def test_a_learning_curve_has_powers_of_ten_and_zero_on_its_axis():
    curve = Line("a", [(0, 0.1), (100, 0.2), (30_000, 0.3)])
    svg = draw_svg(Panel("t", "u", [curve], x="queries", log=True, floor=True))
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert labels[: labels.index("queries")] == ["0", "100", "1k", "10k"]


def test_a_page_of_several_runs_compares_them(pages, runs):
    page = Page(pages["several"])
    assert "4 runs: seed-1, seed-2, uniform, few" in page.text
    assert page.data("query-data")["systems"] == ["BM25", "seed-1", "seed-2", "uniform", "few"]
    selected = [a for tag, a in page.tags if tag == "option" and "selected" in a]
    assert selected[0]["value"] == "3", "--baseline uniform"


def test_a_comparison_names_the_system_of_each_run_in_which_they_differ(runs, tmp_path):
    folders = [runs["seed-1"], runs["uniform"]]
    page = collect_page(folders, PARTS, ReportOptions())
    assert "'retriever-1'" in page.notes[0]
    other = collect_page(folders, PARTS, ReportOptions(system="labels-only"))
    assert "byte for byte" in other.notes[1]
    assert len(page.notes) == 1
    with unknown("system", "retriever-9", "retriever-1"):
        collect_page(folders, PARTS, ReportOptions(system="retriever-9"))


def test_runs_on_other_queries_are_not_tested_together(runs, hostile_run):
    page = collect_page([runs["seed-1"], hostile_run], PARTS, ReportOptions())
    assert page.table is None
    assert page.queries is None
    assert "not tested" in page.notes[0]
    assert len(page.comparison.groups) == 2


def test_an_unfinished_run_is_reported_as_far_as_it_is(runs, tmp_path):
    run = tmp_path / "unfinished"
    shutil.copytree(runs["seed-1"], run)
    for stage in ("evaluation", "retriever-1"):
        shutil.rmtree(run / stage)
    page = Page(report_page([run], PARTS, ReportOptions()))
    for part in ("has no finished evaluation", "retriever-1: to do", "Pre-training loss", "What the masker hides"):
        assert part in page.text
    for stage in ("tokens", "vocabulary", "pretrained"):
        shutil.rmtree(run / stage)
    assert "What the masker hides" not in Page(report_page([run], PARTS, ReportOptions())).text


def test_a_run_whose_collection_has_moved_is_reported(runs, tmp_path):
    run = tmp_path / "moved"
    shutil.copytree(runs["seed-1"], run)
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(re.sub(r'path = ".*"', f'path = "{tmp_path}/gone"', recipe))
    page = Page(report_page([run], PARTS, ReportOptions()))
    assert "cannot be read" in page.text
    assert "Results" in page.text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "recipe.toml").unlink(), "recipe.toml"),
        (lambda run: [shutil.rmtree(p) for p in run.iterdir() if (p / "manifest.json").exists()], "`drkit run "),
        (lambda run: overwrite(run / "evaluation/scores.json", "[]"), "scores.json: has changed since drkit wrote it"),
        (lambda run: overwrite(run / "pretrained/log.jsonl", "{"), "log.jsonl: has changed since drkit wrote it"),
        (lambda run: forge(run / "evaluation", "scores.json", "[]"), "is damaged"),
        (lambda run: forge(run / "evaluation", "scores.json", '{"bm25": {"RR@10": {"q1": "x"}}}'), "is damaged"),
        (lambda run: forge(run / "pretrained", "log.jsonl", "{"), "is damaged"),
    ],
)
def test_bad_input_is_one_error(runs, tmp_path, damage, said):
    run = tmp_path / "run"
    shutil.copytree(runs["seed-1"], run)
    damage(run)
    with pytest.raises(DrkitError, match=said):
        report_page([run], PARTS, ReportOptions())


def overwrite(path, text):
    """Change a file's content and keep its size, which the manifest knows."""
    path.write_text(text.ljust(path.stat().st_size))


def forge(stage, name, text):
    """Change a file's content and its record in the manifest."""
    (stage / name).write_text(text)
    manifest = load_manifest(stage)
    write_manifest(attrs.evolve(manifest, files={**manifest.files, name: FileEntry.of(stage / name)}), stage)


def test_a_baseline_must_exist(runs):
    with unknown("baseline", "retriever-l", "retriever-1"):
        collect_page([runs["seed-1"]], PARTS, ReportOptions(baseline="retriever-l"))
    with pytest.raises(DrkitError, match=r"two .*'seed-1';"):
        collect_page([runs["seed-1"], runs["seed-1"]], PARTS, ReportOptions())


def test_hostile_texts_stay_text(pages):
    page, plain = Page(pages["hostile"]), Page(pages["one"])
    hostile = [(tag, tuple(attributes)) for tag, attributes in page.tags]
    assert {tag for tag, _ in hostile} == {tag for tag, _ in plain.tags}
    assert not [names for tag, names in hostile if tag == "img" or any(name.startswith("on") for name in names)]
    assert [kind for kind, _ in page.scripts] == ["application/json", "code"]
    assert not re.search("[\0-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", pages["hostile"])
    data = page.data("query-data")
    spelled = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert all(query["id"].endswith(spelled) for query in data["queries"])
    assert "<i>run-" in page.text


def test_the_page_needs_nothing_else(pages):
    for page in pages.values():
        for tag, attributes in Page(page).tags:
            for name in ("src", "href", "action", "poster", "srcset", "data"):
                assert not (attributes.get(name) or "#").strip("#").startswith(("http", "//", "/")), (tag, attributes)
            assert tag not in ("link", "iframe", "object", "embed", "base")
        (policy,) = [a["content"] for _, a in Page(page).tags if "Security" in a.get("http-equiv", "")]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "@import" not in page
        assert "url(" not in re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]


def test_the_command_writes_a_page(runs, tmp_path):
    out = tmp_path / "page.html"
    code, printed, err = drkit("report", runs["seed-1"], "-o", out, "--baseline", "bm25")
    assert (code, printed) == (0, f"report  {out}\n"), err
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "error: nowhere "),
        (["a", "b"], "several runs"),
        ([], "Missing argument"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(tmp_path, arguments, said):
    code, _, err = drkit("report", *arguments, cwd=tmp_path)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_the_page_starts_with_the_verdict_of_the_run_and_says_what_its_rows_are(runs, pages):
    record = open_run(runs["seed-1"], PARTS)
    text = Page(pages["one"]).text
    for line in record.verdict[1:]:
        assert " ".join(line.split()) in text
    assert record.verdict[0].startswith("Warning: this is a smoke run.")
    conclusion = collect_page([runs["seed-1"]], PARTS, ReportOptions()).conclusion
    assert f"Warning: {conclusion.warning[0].lower()}{conclusion.warning[1:]}" == record.verdict[0]
    start = text.index("This is a smoke run.")
    positions = [text.index(one) for one in (conclusion.sentence, *conclusion.findings, "Results on 4 queries")]
    assert [start, *positions] == sorted([start, *positions])
    (run,) = collect_page([runs["seed-1"]], PARTS, ReportOptions()).runs
    rows = dict(run.rows)
    assert "fine-tune" in rows["retriever-1"]
    assert "BM25" in rows["BM25"]
    (losses,) = [chart.drawing for chart in run.curves if chart.title == "Loss of every training"]
    assert [line.points[-1][0] for line in losses.lines] == [100] * len(losses.lines)
    assert len(losses.lines) > 1


def scored(base, name, values, system=""):
    scores = Scores({"RR@10": {f"q{n}": value for n, value in enumerate(values)}})
    return attrs.evolve(base, name=name, system=system or name, scores=scores)


UNEVEN = [0.1 * (n % 7) for n in range(60)]


def without_parts(record):
    """The record of a run that says nothing of its parts."""
    manifest = record.manifests["evaluation"]
    found = attrs.evolve(manifest, metrics={**manifest.metrics, "parts": []})
    return attrs.evolve(record, manifests={**record.manifests, "evaluation": found})


def test_the_conclusion_is_the_best_system_against_the_baseline(runs):
    record = without_parts(open_run(runs["seed-1"], PARTS))
    base = systems_of([record])[0]
    best = best_system(runs["seed-1"])
    ahead = [value + 0.1 + 0.01 * (n % 3) for n, value in enumerate(UNEVEN)]
    systems = [scored(base, "BM25", UNEVEN, "bm25"), scored(base, best, ahead)]
    found = conclude_run(record, systems, 0)
    test = paired_t_test(systems[1].scores.per_query["RR@10"], systems[0].scores.per_query["RR@10"])
    assert f"RR@10 {systems[1].scores.mean('RR@10'):.3f}, +0.110 ({test.low:+.3f} to {test.high:+.3f}) over BM25." in (
        found.sentence
    )
    level = [value + 0.1 * (-1) ** n for n, value in enumerate(UNEVEN)]
    systems[1] = scored(base, best, level)
    assert conclude_run(record, systems, 0).sentence.endswith("over BM25 (no difference is shown).")
    systems = [*systems, scored(base, "labels only", [0.5 * value for value in UNEVEN], "labels-only")]
    assert re.search(
        r"over BM25 \(no difference is shown\), \+0\.\d+ \(.*\) over labels only\.$",
        conclude_run(record, systems, 2).sentence,
    )
    alone = conclude_run(record, systems[1:2], 0)
    assert (alone.sentence[-12:], alone.findings) == (f"RR@10 {systems[1].scores.mean('RR@10'):.3f}.", ())


def test_what_a_run_says_of_itself_comes_first(runs):
    record = without_parts(open_run(runs["seed-1"], PARTS))
    systems = systems_of([record])
    test = {"difference": 0.0124, "low": 0.004, "high": 0.0204}
    part = {"slot": "masker", "part": "pmi", "instead": "uniform", "measure": "RR@10", "test": test}
    plain = conclude_run(record, systems, 0)

    def with_results(**more):
        manifest = record.manifests["evaluation"]
        found = attrs.evolve(manifest, metrics={**manifest.metrics, **more})
        return conclude_run(attrs.evolve(record, manifests={**record.manifests, "evaluation": found}), systems, 0)

    found = with_results(parts=[part])
    assert found.sentence == "Masker pmi instead of uniform adds +0.012 RR@10 (+0.004 to +0.020)."
    assert found.findings[0] == plain.sentence
    advised = with_results(parts=[part], gains={"sentence": "keep your checkpoint: no gain shown", "recommended": "as"})
    assert advised.sentence == "Keep your checkpoint: no gain shown."
    assert advised.findings[:2] == (found.sentence, plain.sentence)


def test_equal_verdicts_are_one():
    values = {
        "pmi": [value + 0.2 + 0.01 * (n % 3) for n, value in enumerate(UNEVEN)],
        "labels only": UNEVEN,
        "masked LM": [value + 0.01 * (n % 2) for n, value in enumerate(UNEVEN)],
        "BM25": [value + 0.4 + 0.01 * (n % 5) for n, value in enumerate(UNEVEN)],
        "like it": [value + 0.2 + 0.01 * ((n + 1) % 3) for n, value in enumerate(UNEVEN)],
    }
    scores = [(name, Scores({"RR@10": {str(n): v for n, v in enumerate(own)}})) for name, own in values.items()]
    assert describe_groups("pmi", compare(scores)) == (
        "pmi beats labels only (+0.210) and masked LM (+0.205).",
        "BM25 (+0.210) beats pmi.",
        "No difference is shown between pmi and like it (+0.000).",
    )


def test_no_two_charts_have_one_name(runs):
    logs = {f"retriever-{n}": [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}] for n in range(7)}
    logs |= {name: [{"step": 1, "loss": 2.0, "encoder_mlm_loss": 1.0}] for name in ("pretrained", "other")}
    panels = loss_panels(logs, {"pretrained": [{"step": 1, "encoder_mlm_loss": 1.5}]})
    titles = [panel.title for panel in panels]
    assert len(titles) == len(set(titles)) == 3
    assert [line.label for line in panels[0].lines] == [
        "pretrained, training",
        "pretrained, held out",
        "other, training",
    ]
    page = collect_page([runs["seed-1"]], PARTS, ReportOptions())
    for run in page.runs:
        titles = [chart.title for chart in (*run.curves, *run.masking.charts, page.intervals)]
        assert len(titles) == len(set(titles)), titles


def test_the_queries_open_on_what_was_composed(runs):
    page = collect_page([runs["seed-1"]], PARTS, ReportOptions())
    compared = open_run(runs["seed-1"], PARTS).compared
    assert page.queries.systems[page.queries.as_data()["opened"]] == system_name(compared)
    assert compared not in ("initial", "bm25")
