"""`drkit init`: what it finds in data of any format, and the recipe that it writes."""

import json
import re

import pytest
from attrs import evolve

from drkit.commands import collect_facts, suggest_recipe, write_starter
from drkit.commands.collections import NamedCollection
from drkit.core.registry import installed
from drkit.core.types import Judgement
from drkit.data import DocumentsCollection, DocumentsConfig
from drkit.errors import DrkitError
from drkit.recipe import find_collection
from drkit.recipe.toml import read_recipe
from drkit.search import write_qrels
from tests.core.test_escaping import ACTS, HOSTILE
from tests.refusals import says

PARTS = installed()


@pytest.fixture
def drkit(run_drkit, monkeypatch, tmp_path):
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return run_drkit


def write_beir(folder, texts, queries, judged):
    """A folder in BEIR's layout; judged: split -> [(query, passage, grade)]."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": doc_id, "title": "", "text": text}) for doc_id, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(corpus), encoding="utf-8")
    rows = [json.dumps({"_id": query_id, "text": text}) for query_id, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(rows), encoding="utf-8")
    for split, rows in judged.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def beir(tmp_path):
    texts = {f"d{number}": f"passage number {number} " + "word " * number for number in range(400)}
    texts |= {"copy": texts["d7"], "empty": "", "russian": "слово " * 100}
    queries = {"q1": "a short query", "q2": "another one", "q3": "for test", "d9": texts["d9"]}
    judged = {"train": [("q1", "d1", 1), ("q2", "d2", 0)], "test": [("q3", "d3", 2), ("q3", "d1", 1), ("d9", "d8", 1)]}
    return write_beir(tmp_path / "data", texts, queries, judged)


def test_facts_are_counted(beir):
    facts = collect_facts(f"beir:{beir}")
    assert (facts.passages, facts.duplicates, facts.empty) == (403, 1, 1)
    assert facts.lengths.longest == round(1.5 * 402)
    assert facts.lengths.median == pytest.approx(1.5 * 200, rel=0.02)
    assert [*facts.scripts] == ["LATIN", "CYRILLIC"]
    assert sum(facts.scripts.values()) == pytest.approx(1)
    train, test = facts.splits["train"], facts.splits["test"]
    assert (train.queries, train.answered, train.judgements, train.relevant) == (2, 1, 2, 1)
    assert (test.queries, test.answered, test.judgements, test.relevant) == (2, 2, 3, 3)
    assert facts.judged == 4
    assert facts.copies == 1


def test_chinese_is_counted_by_letters(tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "1", "text": "\u5b57" * 40}), encoding="utf-8")
    facts = collect_facts(f"jsonl:{tmp_path / 't.jsonl'}")
    assert facts.lengths.longest >= 40
    assert facts.scripts == {"CJK": 1.0}


def test_formats_are_found_out(beir, tmp_path):
    assert find_collection(str(beir), PARTS) == f"beir:{beir}"
    assert find_collection(f"beir:{beir}", PARTS) == f"beir:{beir}"
    assert find_collection("pydocs", PARTS) == "pydocs"
    texts, pairs = tmp_path / "texts.jsonl", tmp_path / "pairs.tsv"
    texts.write_text('{"id": "1", "text": "a text"}\n')
    pairs.write_text("query\tpassage\nwhat\tan answer\n")
    tevatron = tmp_path / "train.jsonl"
    positive = {"docid": "d", "title": "", "text": "an answer"}
    row = {"query_id": "1", "query": "what", "positive_passages": [positive], "negative_passages": []}
    tevatron.write_text(json.dumps(row))
    trec = tmp_path / "trec"
    trec.mkdir()
    (trec / "corpus.tsv").write_text("id\ttext\nd\tan answer\n")
    (trec / "topics.test.tsv").write_text("q\twhat\n")
    write_qrels(trec / "qrels.test.txt", [Judgement("q", "d", 1)])
    for path, name in ((texts, "jsonl"), (pairs, "pairs"), (tevatron, "tevatron"), (trec, "trec")):
        assert find_collection(str(path), PARTS) == f"{name}:{path}"


def test_a_folder_of_documents_is_read_by_section(tmp_path, capfd):
    (tmp_path / "guide").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "a.md").write_text("# Hidden\nno")
    code = "```sh\n# not a heading\n```"
    text = f"Before.\n\n# Wings #\n\nLift.\n\n## Slots\n{code}\n### Gap\n## Flaps\nDrag.\n"
    (tmp_path / "guide" / "wing.md").write_text(text)
    (tmp_path / "engine.txt").write_text("# One two.\n\nThree four five.\n\n" + "six " * 9)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "README.md").write_text("")
    assert find_collection(str(tmp_path), PARTS) == f"documents:{tmp_path}"
    assert not capfd.readouterr().err
    collection = DocumentsCollection(DocumentsConfig(path=str(tmp_path), words=6))
    assert [(one.doc_id, one.title, one.text) for one in collection.passages()] == [
        ("engine.txt#1", "", "# One two.\n\nThree four five."),
        ("engine.txt#2", "", ("six " * 9).strip()),
        ("guide/wing.md#1", "", "Before."),
        ("guide/wing.md#2", "Wings", "Lift."),
        ("guide/wing.md#3", "Wings / Slots", code),
        ("guide/wing.md#4", "Wings / Flaps", "Drag."),
    ]
    assert [*collection.describe()["files"]] == [str(path) for path in collection.documents]
    (tmp_path / "latin.txt").write_bytes("Flügel".encode("latin-1"))
    with pytest.raises(DrkitError, match=r"/latin\.txt .*UTF-8"):
        list(DocumentsCollection(DocumentsConfig(path=str(tmp_path))).passages())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrkitError, match=r"/empty .*\.md, "):
        DocumentsCollection(DocumentsConfig(path=str(tmp_path / "empty")))


def test_compose_takes_a_path_as_init_does(beir, run_drkit, tmp_path):
    recipes = []
    for name in (str(beir), f"beir:{beir}"):
        code, out, err = run_drkit("compose", "--collection", name, "--dry-run", "--json", "--quick")
        assert code == 0, err
        recipes.append(json.loads(out)["recipe"])
    assert recipes[0] == recipes[1]
    assert NamedCollection(str(beir)).source.splits() == NamedCollection(f"beir:{beir}").source.splits()
    code, _, err = run_drkit("compose", "--collection", tmp_path / "no.csv", "--dry-run")
    assert code == 2
    assert says(err, "no.csv", "NAME:VALUE")
    code, _, err = run_drkit("compose", "--collection", f"biir:{beir}", "--dry-run")
    assert "'beir'?" in err
    code, _, err = run_drkit("init")
    assert code == 2
    assert "COLLECTION" in err


def test_a_folder_of_texts_and_documents_names_both_formats(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"id": "a", "text": "one"}\n')
    assert find_collection(str(tmp_path), PARTS) == f"jsonl:{tmp_path}"
    (tmp_path / "guide.md").write_text("# Wings\nLift.")
    with pytest.raises(DrkitError, match=f"choose jsonl:{tmp_path} or documents:{tmp_path}"):
        find_collection(str(tmp_path), PARTS)
    assert find_collection(f"jsonl:{tmp_path}", PARTS) == f"jsonl:{tmp_path}"


def test_what_is_no_collection_is_refused(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(DrkitError, match=r"/picture\.png ends in \.png, .*\.jsonl"):
        find_collection(str(tmp_path / "picture.png"), PARTS)
    with pytest.raises(DrkitError, match=r"^no such file or folder: no/such/path; .*NAME:VALUE.*beir, documents"):
        find_collection("no/such/path", PARTS)


@pytest.mark.parametrize(("encoder", "has_gpu", "scale"), [(None, False, "small"), (None, True, "small")])
def test_the_scale_follows_the_machine(beir, encoder, has_gpu, scale):
    found = suggest_recipe(collect_facts(f"beir:{beir}"), PARTS, encoder=encoder, has_gpu=has_gpu)
    assert found.scale == scale
    assert ("--encoder" in found.why) is has_gpu


def test_few_passages_get_a_smoke_run(tmp_path):
    folder = write_beir(tmp_path / "few", {"a": "one", "b": "two"}, {"q": "which"}, {"test": [("q", "a", 1)]})
    facts = collect_facts(f"beir:{folder}")
    found = suggest_recipe(facts, PARTS, has_gpu=False)
    assert found.scale == "quick"
    assert "Without training queries" in " ".join(found.advice)
    assert suggest_recipe(facts, PARTS, scale="small", has_gpu=False).scale == "small"
    paper = suggest_recipe(facts, PARTS, scale="paper", has_gpu=False)
    assert "is not fine-tuned" in " ".join(paper.advice), "the papers have no rounds on crops"


def test_lengths_follow_the_texts(beir):
    found = suggest_recipe(collect_facts(f"beir:{beir}"), PARTS, has_gpu=False)
    encoder = found.recipe.encoder
    assert encoder.passage_length == 512
    assert encoder.query_length % 16 == 0
    assert found.recipe.evaluation.exclude_self, "a query is a passage of the collection"
    assert {"encoder.passage_length", "encoder.query_length", "evaluation.exclude_self"} == {*found.reasons}


def test_a_collection_with_many_labels_is_trained_on_all_of_them(beir):
    facts = collect_facts(f"beir:{beir}")
    train = facts.splits["train"]
    few, many = (evolve(facts, splits={**facts.splits, "train": evolve(train, answered=n)}) for n in (2000, 2001))
    made = [suggest_recipe(one, PARTS, has_gpu=False).recipe.finetune for one in (few, many)]
    assert [one.max_steps for one in made] == [100, -1]
    assert [one.rounds[0].queries for one in made] == [2000, 0]


def test_the_recipe_has_comments_and_reads_back_equal(beir, tmp_path):
    facts = collect_facts(f"beir:{beir}")
    found = suggest_recipe(facts, PARTS, has_gpu=False)
    path = tmp_path / "r.toml"
    write_starter(found, facts, path, PARTS.registry)
    text = path.read_text(encoding="utf-8")
    assert read_recipe(path, PARTS.registry) == found.recipe
    # what differs from a setting's default, and nothing else
    listed = [line.partition(" = ")[0] for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert listed == [
        *("name", "use", "path", "query_length", "passage_length"),
        *("learning_rate", "max_steps", "warmup_steps", "arguments", "probe", "baseline_learning_rates"),
        *("masker", "losses", "masker", "decoder", "losses"),
        *("max_steps", "per_device_train_batch_size", "loss", "negatives", "rounds", "baselines"),
        *("measures", "depth", "start", "exclude_self"),
    ]
    assert '\n[pretrain.decoders.main]\nmasker = {use = "pmi", ratio = 0.5} ' in text
    assert "# passages: 403;" in text
    assert "# Scale small: from scratch" in text
    lines = text.splitlines()
    (length,) = (number for number, line in enumerate(lines) if line.startswith("passage_length = "))
    assert says(lines[length - 1], "# 95 %", "passages")
    (steps,) = (line for line in lines if line.startswith("warmup_steps = "))
    assert says(steps, "# ", "below 1", "share", "steps")


@pytest.mark.parametrize("scale", ["paper", "small", "quick"])
@pytest.mark.parametrize("encoder", [None, "owner/name"])
def test_what_is_left_out_changes_no_recipe(beir, tmp_path, scale, encoder):
    facts = collect_facts(f"beir:{beir}")
    found = suggest_recipe(facts, PARTS, encoder=encoder, scale=scale, has_gpu=False)
    write_starter(found, facts, tmp_path / "r.toml", PARTS.registry)
    assert read_recipe(tmp_path / "r.toml", PARTS.registry) == found.recipe


def test_it_never_overwrites(drkit, beir, tmp_path):
    (tmp_path / "recipe.toml").write_text("mine")
    code, out, err = drkit("init", beir)
    assert (code, out) == (2, "")
    assert says(err, "recipe.toml", "-o")
    assert (tmp_path / "recipe.toml").read_text() == "mine"


def test_the_recipe_runs_as_it_is(drkit, beir):
    code, out, err = drkit("init", "data")
    assert code == 0, err
    assert "format" not in err
    assert "duplicates: 1 passage (0.2%)" in out
    assert out.splitlines()[-1].split() == ["use", "drkit", "run", "recipe.toml", "--dry-run"]
    code, out, err = drkit("run", "recipe.toml", "--dry-run")
    assert code == 0, err
    assert "runs/data-pmi-enhanced" in out


def test_texts_alone(drkit, tmp_path):
    rows = (json.dumps({"id": str(number), "text": f"text number {number}"}) for number in range(400))
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    code, out, err = drkit("init", "texts.jsonl", "--json", "-o", "texts.toml")
    assert code == 0, err
    document = json.loads(out)
    assert {*document} == {"recipe", "facts", "scale", "why", "reasons", "advice"}
    assert document["facts"]["splits"] == {}
    assert says(document["advice"][0], "fine-tuned", "evaluates")
    assert drkit("run", "texts.toml", "--dry-run")[0] == 0


def test_hostile_names_stay_in_their_comment(drkit, tmp_path):
    name = HOSTILE.replace("/", "")
    (tmp_path / name).mkdir()
    write_beir(tmp_path / name / "x", {"a": HOSTILE, "b": "two"}, {"q": HOSTILE}, {"test": [("q", "a", 1)]})
    code, out, err = drkit("init", f"{name}/x")
    assert not ACTS.search(out + err)
    assert code == 0, err
    assert not ACTS.search((tmp_path / "recipe.toml").read_text(encoding="utf-8"))
    assert drkit("run", "recipe.toml", "--dry-run")[0] == 0
