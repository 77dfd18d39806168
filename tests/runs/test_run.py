"""A whole run through the command line, on real text: what it leaves, and that nothing it leaves is lost."""

import json
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from drkit.core.escaping import escape_paragraph
from drkit.core.registry import installed
from drkit.data.corpus import open_collection
from drkit.evaluate import evaluate, tune_weight
from drkit.evaluate.names import system_in_words, system_name
from drkit.evaluate.systems import describe_bm25, describe_contributions, verdict
from drkit.recipe.toml import read_recipe
from drkit.runs.manifest import read_manifest
from drkit.search import HybridRetriever, Retriever, TextEncoder, align, convex, read_qrels, read_run
from drkit.search.fusion import read_fusion
from tests.refusals import says
from tests.runs.conftest import TINY, drkit, tiny
from tests.warm import warm_process

STAGES = [
    "collection",
    "vocabulary",
    "tokens",
    "signal-importance",
    "initial",
    "pretrained",
    "query-tokens",
    "negatives-retriever-1",
    "labels-only",
    "retriever-1",
    "index-retriever-1",
    "negatives-retriever-2",
    "retriever-2",
    "index-initial",
    "index-labels-only",
    "index-retriever-2",
    "choice-runs",
    "choice",
    "encoder",
    "index",
    "bm25",
    "runs",
    "dev-runs",
    "hybrid",
    "evaluation",
]


def test_a_run_leaves_every_stage_whole(tiny_run):
    run, out = tiny_run
    for stage in STAGES:
        manifest = read_manifest(run / stage)
        assert manifest is not None, stage
        assert manifest.versions["torch"]
    assert sorted(p.name for p in run.iterdir()) == sorted(
        [*STAGES, ".lock", ".processes.json", ".recipe.toml", "recipe.toml"]
    )
    for words in (
        "BM25",
        "as it starts",
        "labels only",
        "the encoder as it starts: RR@10",
        "dev queries (RR@10",
        "retriever-1",
        "retriever-2",
        "RR@10",
        "R@100",
        str(run / "encoder"),
    ):
        assert words in out
    recipe = read_recipe(run / "recipe.toml", installed().registry)
    assert recipe.pretrain.max_steps == 12
    assert read_manifest(run / "pretrained").metrics["steps"] == 12


def test_texts_that_are_cut_are_counted_wherever_a_run_is_looked_at(tiny_run):
    """Passages, training queries and the queries that are evaluated: each as often as the tokenizer says."""
    from transformers import AutoTokenizer

    run, out = tiny_run
    tokenizer, collection = AutoTokenizer.from_pretrained(run / "encoder"), open_collection(run / "collection")
    kinds = {
        "passages": ([p.content for p in collection.corpus], 48, "passage_length"),
        "training queries": ([q.text for q in collection.queries("train")], 32, "query_length"),
        "test queries": ([q.text for q in collection.queries("test")], 32, "query_length"),
    }
    shown = [out, drkit("status", run).stdout]
    for what, (texts, limit, setting) in kinds.items():
        cut = sum(len(tokenizer(text, verbose=False)["input_ids"]) > limit for text in texts)
        line = f"{cut:,} of {len(texts):,} {what} were truncated to {limit} tokens; --set encoder.{setting}="
        assert [line in " ".join(text.split()) for text in shown] == [bool(cut)] * 2, what
    assert says(out, "passages", "48 tokens")


def test_no_pickle_and_no_checkpoint_is_left(tiny_run):
    run, _ = tiny_run
    left = [p.name for p in run.rglob("*") if p.suffix in (".bin", ".pt", ".pth", ".pkl")]
    assert not left


def test_the_table_is_what_the_trec_files_say(tiny_run):
    run, _ = tiny_run
    rows = read_manifest(run / "evaluation").metrics["rows"]
    qrels = list(read_qrels(run / "evaluation" / "qrels.txt"))
    for row in rows:
        folder = run / ("hybrid" if row["system"] == "hybrid" else "runs")
        scores = evaluate(read_run(folder / f"{row['system']}.arrow"), qrels, ["RR@10", "R@100"])
        for measure in ("RR@10", "R@100"):
            assert scores.mean(measure) == pytest.approx(row["values"][measure], abs=1e-12)


def test_hybrid_is_tuned_on_dev_queries_and_reported(tiny_run):
    run, out = tiny_run
    facts = read_manifest(run / "hybrid").metrics
    dev = list(open_collection(run / "collection").judgements("dev"))
    chosen = facts["retriever"]
    bm25, dense = read_run(run / "dev-runs" / "bm25.arrow"), read_run(run / "choice-runs" / f"{chosen}.arrow")
    assert not (run / "dev-runs" / "exported.arrow").exists(), "the choice has searched for the dev queries"
    tuned = tune_weight(bm25, dense, dev, "RR@10")
    assert facts["weight"] == tuned.weight
    assert facts["tuned"]["queries"] == len({judgement.query_id for judgement in dev})
    bm25, dense = (read_run(run / "runs" / f"{name}.arrow") for name in ("bm25", chosen))
    fused = list(convex(align(bm25, dense), tuned.weight, 100))
    assert list(read_run(run / "hybrid" / "hybrid.arrow")) == fused
    metrics = read_manifest(run / "evaluation").metrics
    assert metrics["rows"][-1]["system"] == "hybrid"
    assert metrics["hybrid"]["weight"] == tuned.weight
    assert metrics["compared"] == ("retriever-2" if chosen in ("initial", "labels-only") else chosen)
    systems = {"bm25", "initial", "labels-only", "retriever-1", "retriever-2"}
    assert set(metrics["against"]) == systems - {metrics["compared"]}
    for line in verdict(metrics):
        assert line in " ".join(out.split())
    again = " ".join(drkit("evaluate", run, "-m", "RR@10").stdout.split())
    assert f"hybrid {metrics['rows'][-1]['values']['RR@10']:.3f}" in again
    assert ":hybrid (" in drkit("compare", f"{run}:bm25", f"{run}:hybrid", "-m", "RR@10").stdout


def test_hybrid_search_ranks_as_the_run_did(tiny_run, tmp_path):
    run, _ = tiny_run
    drkit("search", run, "--system", "hybrid", "--split", "test", "-k", 100, "-o", tmp_path / "h.trec")
    ranked, again = (dict(read_run(path)) for path in (run / "hybrid" / "hybrid.arrow", tmp_path / "h.trec"))
    assert ranked.keys() == again.keys()
    for query_id, hits in ranked.items():
        np.testing.assert_allclose([s for _, s in hits], [s for _, s in again[query_id]], atol=1e-4)
    hybrid = HybridRetriever.load(run)
    (best,) = hybrid.search(["remove a handler from the logger"], 3)
    shown = drkit("search", run, "remove a handler from the logger", "--hybrid", "-k", 3).stdout
    assert shown.startswith(f"hybrid: BM25 + {system_name(read_fusion(run).retriever)}\n")
    assert all(f"{score:.4f}  {doc_id}" in shown for doc_id, score in best.pairs())
    assert len(hybrid) == len(open_collection(run / "collection").corpus)
    for arguments, named in (
        (("search", run / "index", "a", "--system", "hybrid"), ("/index ", "--system")),
        (("search", run, "a", "--system", "bm25", "--encoder", run), ("--encoder", "BM25")),
        (("search", run, "a", "--system", "hibrid"), ("'hibrid'", "'hybrid'?", "bm25", "retriever-1")),
        (("search", run, "--engine", "ray:x", "--split", "test", "-o", tmp_path / "o"), ("--engine", "--system ")),
        (("search", run, " ", "--system", "hybrid"), ("query", "empty")),
    ):
        done = drkit(*arguments, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert says(done.stderr, *named)


def test_sentence_transformers_and_transformers_give_the_same_vectors(tiny_run):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    run, _ = tiny_run
    texts = ["remove a suffix from each string", "Send a signal to the process.", "a"]
    ours = TextEncoder.load(run / "encoder").encode_passages(texts)
    model = SentenceTransformer(str(run / "encoder"), device="cpu")
    assert np.abs(model.encode(texts) - ours).max() < 1e-5
    assert model.similarity_fn_name == "cosine"
    backbone, tokenizer = (
        AutoModel.from_pretrained(run / "encoder").eval(),
        AutoTokenizer.from_pretrained(run / "encoder"),
    )
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = backbone(**batch).last_hidden_state
    real = batch["attention_mask"].unsqueeze(-1)
    mean = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)
    assert np.abs(mean.numpy() - ours).max() < 1e-5


def test_searching_a_run(tiny_run):
    run, _ = tiny_run
    passage = next(iter(open_collection(run / "collection").corpus))
    (hits,) = Retriever.load(run).search([passage.content], 3)
    assert hits.doc_ids[0] == passage.doc_id
    out = drkit("search", run, passage.content, "-k", "3").stdout
    assert passage.doc_id in out
    assert len([line for line in out.splitlines() if line.strip()[:1].isdigit()]) >= 3


def test_running_again_does_nothing_and_another_recipe_is_refused(tiny_run):
    run, first = tiny_run
    before = {stage: read_manifest(run / stage) for stage in STAGES}
    again = drkit("run", run)
    assert again.stderr.count("; kept") == len(STAGES)
    assert {stage: read_manifest(run / stage) for stage in STAGES} == before
    assert again.stdout.splitlines()[:5] == first.splitlines()[:5]
    other = drkit("compose", "--masker", "uniform", *TINY, "--run-dir", run, check=False)
    assert other.returncode == 2
    assert "pretrain.decoders.main.masker.use: pmi -> uniform" in other.stderr


def test_the_status_of_a_run_names_what_is_kept_and_what_was_damaged(tiny_run, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(tiny_run[0], run)
    intact = drkit("status", run).stdout
    rows = [line.split() for line in intact.splitlines()[1 : len(STAGES) + 2]]
    assert {row[0] for row in rows} == {*STAGES, "all"}
    assert [row[5] for row in rows[:-1]] == ["kept"] * len(STAGES)
    assert sum(float(row[3].replace(",", "")) for row in rows[:-1]) == pytest.approx(float(rows[-1][3]), abs=0.05 * 27)
    shown = sum(path.stat().st_size for stage in STAGES for path in (run / stage).rglob("*") if path.is_file())
    manifests = sum((run / stage / "manifest.json").stat().st_size for stage in STAGES)
    assert rows[-1][3:5] == [f"{(shown - manifests) / 1e6:,.1f}", "MB"]
    weights = run / "retriever-1/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert drkit("status", run).stdout == intact, "the size is the same"
    found = drkit("status", run, "--verify", check=False)
    assert found.returncode == 1
    assert says(found.stdout, "model.safetensors")
    weights.write_bytes(content[:-1])
    cut = " ".join(drkit("status", run).stdout.split())
    assert says(cut, f"model.safetensors has {len(content) - 1:,} bytes", f"{len(content):,}")
    missing = drkit("status", tmp_path / "nothing", check=False)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert says(missing.stderr, str(tmp_path / "nothing"), "recipe.toml")


def _kill_at_random(arguments, delays):
    """Start the command and kill it hard after each delay, until it finishes; the number of kills."""
    process = warm_process()
    for kills, delay in enumerate(delays):
        process.start(*arguments)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        if process.wait()["code"] == 0:
            return kills
    return len(delays)


@pytest.mark.slow
def test_killed_at_random_and_resumed_equals_uninterrupted(tiny_run, tmp_path):
    """Hard kills somewhere in a run, then one that finishes: every stage's content is the same, bit for bit."""
    whole, _ = tiny_run
    run = tmp_path / "killed"
    arguments = ["compose", "--masker", "pmi", "--decoder", "enhanced", *TINY, "--run-dir", run]
    rng = random.Random(3)
    assert _kill_at_random(arguments, [rng.uniform(0.5, 2.5) for _ in range(6)]) > 1
    drkit(*arguments)
    for stage in STAGES:
        assert read_manifest(run / stage) is not None
    for stage in (
        "signal-importance",
        "pretrained",
        "negatives-retriever-2",
        "retriever-2",
        "encoder",
        "index",
        "runs",
    ):
        ours, theirs = read_manifest(run / stage), read_manifest(whole / stage)
        same = {name for name in ours.files if ours.files[name] == theirs.files.get(name)}
        assert set(ours.files) - same <= {"log.jsonl", "training.json", "README.md", "drkit.json"}, (
            stage,
            set(ours.files) - same,
        )


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(beir, tmp_path):
    run = tmp_path / "interrupted"
    process, deadline = warm_process(), time.monotonic() + 120
    process.start("compose", *tiny(beir), "--set=pretrain.max_steps=100000", "--run-dir", run)
    while not list(run.glob(".unfinished/pretrained/checkpoints/checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    done = process.wait()
    assert done["code"] == 130
    assert f"drkit run {run / 'recipe.toml'}" in done["err"]
    assert "Traceback" not in done["err"]
    assert read_manifest(run / "signal-importance") is not None
    assert read_manifest(run / "pretrained") is None


def test_a_full_disk_in_a_training_is_told_and_the_run_goes_on(beir, tmp_path):
    """Files may not grow beyond a limit, as on a full disk: the message, exit code 2, then a run that finishes."""
    run = tmp_path / "full"
    limited = tmp_path / "limited.py"
    limited.write_text(
        "import resource, drkit_cli.main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))\n"
        "drkit_cli.main.main()\n"
    )
    arguments = ["compose", *tiny(beir, "pipeline"), "--set=finetune=none", "--run-dir", str(run)]
    done = warm_process().drkit(*arguments, script=str(limited))
    assert done["code"] == 2, done["err"]
    assert "disk" in done["err"]
    assert "Traceback" not in done["err"]
    assert [read_manifest(run / stage) is None for stage in ("initial", "pretrained")] == [False, True]
    assert drkit(*arguments).returncode == 0


def test_texts_alone_are_pretrained_on_and_exported(tmp_path):
    texts = [json.dumps({"text": f"{word} is a word about {word}s and {other}s"}) for word in WORDS for other in WORDS]
    (tmp_path / "texts.jsonl").write_text("\n".join(texts))
    small = [a for a in TINY if not any(word in a for word in ("collection", "finetune", "pipeline"))]
    run = tmp_path / "run"
    done = drkit(
        "compose",
        *("--masker", "uniform", "--decoder", "mlm", "--collection", f"jsonl:{tmp_path / 'texts.jsonl'}"),
        *small,
        "--set=encoder.vocab_size=120",
        "--set=encoder.hidden=16",
        "--run-dir",
        run,
    )
    assert says(done.stderr, "only texts", "pre-trained encoder")
    assert str(run / "encoder") in done.stdout
    assert TextEncoder.load(run / "encoder").encode_queries(["a lion"]).shape == (1, 16)


WORDS = ["lion", "tiger", "bear", "wolf", "fox", "deer", "hare", "crow", "owl", "carp", "pike", "trout"]


def test_a_bad_line_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "good"}\n{"text": \n')
    run = tmp_path / "run"
    done = drkit("compose", "--collection", f"jsonl:{tmp_path / 'texts.jsonl'}", "--run-dir", run, check=False)
    assert done.returncode == 2
    assert "texts.jsonl:2" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / "collection").exists()


def test_starting_from_an_existing_encoder(tiny_run, beir, tmp_path):
    """A run's pre-trained masked LM, taken up by another run, decoder and all other parts anew."""
    whole, _ = tiny_run
    small = [a for a in tiny(beir) if "encoder." not in a]
    run = tmp_path / "continued"
    done = drkit(
        *("compose", "--paper", "retromae", "--encoder", whole / "pretrained", *small),
        *("--set=encoder.passage_length=48", "--set=finetune.negatives=1", "--run-dir", run),
    )
    assert "a sentence encoder" not in done.stdout + done.stderr
    assert read_manifest(run / "evaluation") is not None
    assert TextEncoder.load(run / "encoder").card.pooling == "mean", "the checkpoint's own, not the paper's"


def test_an_exported_encoder_is_taken_up_with_its_pooling(tiny_run, tmp_path):
    """It has no language-model head: that one is new, and said to be."""
    whole, _ = tiny_run
    small = [a for a in TINY if "encoder." not in a]
    done = drkit(
        *("compose", "--masker", "uniform", "--decoder", "mlm", "--encoder", whole / "encoder", *small),
        *("--set=encoder.passage_length=32", "--set=finetune.negatives=0", "--set=finetune.baselines=[]"),
        *("--run-dir", tmp_path / "continued"),
    )
    assert "no language-model head" in done.stderr
    assert "a sentence encoder" in done.stdout + done.stderr
    assert TextEncoder.load(tmp_path / "continued" / "encoder").card.pooling == "mean"
    _check_as_it_is(whole, tmp_path / "continued", done.stdout)


def _check_as_it_is(whole, continued, printed):
    """The row "as it is" has the weights, lengths and rankings of the encoder that the run was given."""
    given, kept = (TextEncoder.load(folder).identity() for folder in (whole / "encoder", continued / "as-it-is"))
    assert given == kept
    assert read_manifest(continued / "tokens-as-it-is").settings["encoder.passage_length"] == 48
    assert read_manifest(continued / "tokens").settings["encoder.passage_length"] == 32
    exported = (whole / "choice" / "chosen.txt").read_text()
    before, after = (read_run(f) for f in (whole / f"runs/{exported}.arrow", continued / "runs/as-it-is.arrow"))
    for (query, found), (same_query, same) in zip(before, after, strict=True):
        assert query == same_query
        assert [score for _, score in found] == pytest.approx([score for _, score in same], abs=1e-5)
    rows = [row["system"] for row in read_manifest(continued / "evaluation").metrics["rows"]]
    assert rows == ["bm25", "as-it-is", "retriever-1", "retriever-2", "hybrid"]
    assert f"{system_in_words('as-it-is')}: RR@10" in printed


def test_the_best_retriever_on_dev_is_exported_with_its_index(tiny_run):
    run, out = tiny_run
    choice = json.loads((run / "choice" / "choice.json").read_text())
    assert choice["best"] == max(choice["values"], key=choice["values"].get)
    best = choice["chosen"]  # or the plain one, within one standard error
    assert says(out, f"exported: {system_in_words(best)}")
    bm25 = read_manifest(run / "bm25").metrics
    assert describe_bm25(bm25) in " ".join(out.split())
    assert read_manifest(run / "encoder").metrics["from"] == best
    kept, index = read_manifest(run / "index").files, read_manifest(run / f"index-{best}").files
    assert kept == index
    queries = list(open_collection(run / "collection").queries("test"))[:20]
    ranked = dict(read_run(run / "runs" / f"{best}.arrow"))
    for query, hits in zip(queries, Retriever.load(run).search([q.text for q in queries], 5), strict=True):
        assert list(hits.scores) == pytest.approx([score for _, score in list(ranked[query.query_id])[:5]], abs=1e-5)


def test_a_collection_with_test_queries_alone_is_evaluated_as_it_is(beir, tmp_path):
    given, run, trained = (tmp_path / name for name in ("given", "run", "trained"))
    shutil.copytree(beir, given)
    splits = [path.read_text().splitlines() for path in sorted(given.glob("qrels/*.tsv"))]
    shutil.rmtree(given / "qrels")
    (given / "qrels").mkdir()
    rows = [splits[0][0], *(row for lines in splits for row in lines[1:])]
    (given / "qrels" / "test.tsv").write_text("\n".join(rows) + "\n")
    arguments = ["compose", *tiny(given, "pipeline"), "--paper=retromae"]
    done = drkit(*arguments, "--run-dir", run)
    assert says(done.stderr, "training queries")
    facts = read_manifest(run / "hybrid").metrics
    assert (facts["weight"], facts["tuned"]) == (0.3, None), "there are no dev queries to tune it on"
    assert says(done.stdout, "0.3 x pretrained + 0.7 x BM25", "default weight")
    assert [row["system"] for row in read_manifest(run / "evaluation").metrics["rows"]] == [
        "bm25",
        "initial",
        "pretrained",
        "hybrid",
    ]
    drkit(*arguments, "--set=collection.train_share=0.5", "--set=finetune.baselines=[]", "--run-dir", trained)
    rows = read_manifest(trained / "evaluation").metrics["rows"]
    assert [row["system"] for row in rows] == ["bm25", "initial", "retriever-1", "retriever-2", "hybrid"]
    assert rows[0]["queries"] < 20


def test_word_vectors_learn_from_crops_and_then_from_judgements(beir, tmp_path):
    """A round without labels, and the retriever from there."""
    small = tiny(beir, "pipeline", "layers", "pretrain")
    arguments = ["compose", "--pipeline", "words", *small, "--set=finetune.rounds.0.max_steps=8"]
    done = drkit(*arguments, "--run-dir", tmp_path / "run")
    rows = [row["system"] for row in read_manifest(tmp_path / "run" / "evaluation").metrics["rows"]]
    assert rows == ["bm25", "initial", "unsupervised", "labels-only", "retriever-1", "hybrid"]
    assert "unsupervised" in done.stdout
    assert read_manifest(tmp_path / "run" / "unsupervised").metrics["steps"] == 8
    counted = read_manifest(tmp_path / "run" / "pseudo-queries").metrics["crops"]
    assert counted["kept"] == counted["made"] > 0
    config = json.loads((tmp_path / "run" / "initial" / "config.json").read_text())
    assert config["num_hidden_layers"] == 0
    found = drkit("search", tmp_path / "run", "what is topic3 about").stdout
    assert found.splitlines()[1].strip().startswith("1")
    encoder = TextEncoder.load(tmp_path / "run" / "encoder")
    assert len(Retriever.load(tmp_path / "run").search(["what is topic3 about"], 3)[0].doc_ids) == 3
    assert encoder.encode_queries(["what is topic3 about"]).shape[1] == encoder.dimension


def test_the_default_run_says_what_its_parts_are_worth(beir, tmp_path):
    run, small = tmp_path / "run", tiny(beir, "pipeline", "baselines")
    done = drkit("compose", "--masker", "pmi", "--decoder", "enhanced", *small, "--run-dir", run)
    printed = " ".join(done.stdout.split())
    metrics = read_manifest(run / "evaluation").metrics
    rows = [row["system"] for row in metrics["rows"]]
    assert rows == ["bm25", "initial", "labels-only", "masker=uniform", "decoder=mlm", "retriever-1", "hybrid"]
    assert metrics["compared"] == "retriever-1", "whichever is exported"
    for rival in ("the encoder as it starts", "labels only", "BM25"):
        assert re.search(rf"retriever-1 beats {rival}:|{rival} beats retriever-1:|retriever-1 and {rival}:", printed)
    first, second = metrics["parts"]
    assert [(one["part"], one["baseline"]) for one in (first, second)] == [
        ("pmi", "masker=uniform"),
        ("enhanced", "decoder=mlm"),
    ]
    mean = {row["system"]: row["values"]["RR@10"] for row in metrics["rows"]}
    assert second["test"]["difference"] == pytest.approx(mean["retriever-1"] - mean["decoder=mlm"])
    sentence = describe_contributions(metrics["parts"])
    assert printed.count(sentence) == 1
    assert printed.index(sentence) < printed.index("test queries")
    assert (run / "evaluation" / "table.md").read_text().startswith(escape_paragraph(sentence))
    named = ("pretrained", "pretrained-masker=uniform", "pretrained-decoder=mlm")
    steps = [read_manifest(run / name).metrics["steps"] for name in named]
    assert steps == [12, 12, 12]
