"""Mistakes of newcomers, each with what its single error must say: mostly the line to type instead."""

from __future__ import annotations

import json
import shlex

import pytest

from drkit_cli.hints import _COMMANDS
from drkit_cli.main import cli

FINE = "write --set finetune.{0} or --set pretrain.{0}"

LINES = {
    # Commands of other tools.
    "train": "write `drkit compose --collection FOLDER`",
    "finetune": "write `drkit improve ENCODER --texts FOLDER --labels FILE`",
    "sweep masker=pmi": "write `drkit study masker=uniform,pmi decoder=mlm,enhanced`",
    "study --masker uniform,pmi": "write masker=uniform,pmi",
    "improve E --collection F": "write --texts F",
    "improve E --texts F --epochs 3": "write --set finetune.num_train_epochs=3",
    "eval": "write `drkit evaluate --encoder ENCODER --collection beir:FOLDER`",
    "benchmark": "write `drkit evaluate --encoder ENCODER",
    "retrieve": 'write `drkit search RUN "a query"`',
    "embed": "write `drkit encode --encoder ENCODER",
    "resume R": "write `drkit run RUN`",
    "ls": "write `drkit list`",
    "ui": "write `drkit serve RUN`",
    "evalute": "did you mean 'evaluate'?",
    "version": "write `drkit --version`",
    "-V": "write --version",
    # Options of other tools.
    "compose --collection a --collection b": "a data set of several needs a name",
    "run two.toml --dry-run": "a recipe has one collection",
    "compose --masker pmi --masker uniform": "--masker is given twice, but takes one value",
    "search R --depth 3 --depth 4": "--depth is given twice, but takes one value",
    "compose --epochs 3": FINE.format("num_train_epochs=3"),
    "compose --num_train_epochs=3": FINE.format("num_train_epochs=3"),
    "compose --lr 1e-4": FINE.format("learning_rate=1e-4"),
    "compose --learning_rate=1e-4": FINE.format("learning_rate=1e-4"),
    "compose --batch-size 32": FINE.format("batch_size=32"),
    "compose --max-steps 9": FINE.format("max_steps=9"),
    "compose --fp16": FINE.format("bf16=true"),
    "compose --warmup 0.1": FINE.format("warmup_steps=0.1"),
    "compose --seed 3": "write --set seed=3",
    "compose --temperature .05": "write --set finetune.loss.temperature=.05",
    "compose --max-seq-length 64": "--set encoder.passage_length=64",
    "compose --limit 9": "write --set collection.limit=9",
    "compose --device cuda": "a GPU is used if torch sees one",
    "compose --workers 4": "torchrun --nproc-per-node N",
    "compose --resume": "`drkit run RUN` resumes a run",
    "compose --output-dir x": "write --run-dir x",
    "compose --model some/model": "write --encoder some/model",
    "compose --dataset F": "write --collection F",
    "compose --texts F": "write --collection F",
    "compose --recipe retromae": "write --paper retromae",
    "compose --dry": "write --dry-run",
    "compose --dryrun": "did you mean --dry-run?",
    "compose --mask pmi": "write --masker pmi",
    "compose --overwrite": "write --redo",
    "compose --nothing-like-it": "No such option '--nothing-like-it' (see `drkit compose --help`)",
    "run recipe.toml --set seed=1": "`drkit run` takes a recipe as it is",
    "run recipe.toml --epochs 3": "change finetune.num_train_epochs in its file",
    "search R words --top-k 5": "write --depth 5",
    "evaluate a.trec --metric AP": "write --measures AP",
    "evaluate --model E --collection beir:F": "write --encoder E",
    "encode --encoder E --collection beir:F --limit 9 -o v": "write --set collection.limit=9",
    "fuse a.trec b.trec --alpha 1": "write --weight 1",
    "export E --format openvino": "write --backend openvino",
    "mine --collection F --miner bm25 --encoder E -o n.jsonl": "--encoder has no effect on bm25",
    "mine --num-negatives 3": "write --negatives 3",
    "serve R --host 0.0.0.0": "ssh -L",
    # Settings.
    "compose --set pretrain.lr=1e-4": "no setting named 'lr'; write --set pretrain.learning_rate=1e-4 @ pretrain",
    "compose --set lr=1e-4": "write --set finetune.learning_rate=1e-4 or --set pretrain.learning_rate=1e-4",
    "compose --set training.lr=1e-4": "write --set finetune.learning_rate=1e-4",
    "compose --set finetune.train_batch_size=8": "write --set finetune.batch_size=8",
    "compose --set encoder.max_length=64": "write --set encoder.passage_length=64",
    "compose --set masker.ratio=.5": "--set pretrain.decoders.main.masker.ratio=.5",
    "compose --set dev_share=.1": "write --set collection.dev_share=.1",
    "compose --set pretrain.lerning_rate=1": "did you mean 'learning_rate'?",
    "compose --set seed=1,pretrain.max_steps=2": "write --set seed=1 --set pretrain.max_steps=2",
    "compose --set seed 1": "expected PATH=VALUE without spaces",
    # Arguments that are missing, or too many.
    "encode E": "Missing option '--encoder', as in `drkit encode --encoder runs/R --collection beir:FOLDER -o v",
    "fuse a.trec": "Missing argument 'B', as in `drkit fuse",
    "show pmi mlm extra": "unexpected extra argument (extra), as in `drkit show pmi`",
    "compose F": "'F' is a path: --collection F",
    "compose E": "'E' is an encoder: --encoder E",
    "compose masker=pmi": "--masker pmi",
    "compose seed=1": "--set seed=1",
    "compose recipe.toml": "`drkit run recipe.toml`",
    "compose -o R": "-o R.toml; --run-dir R is the run's folder",
    "evaluate E": "E is an encoder; write `drkit evaluate --encoder E --collection beir:FOLDER`",
    "evaluate E beir:F": "write `drkit evaluate --encoder E --collection beir:F`",
    "evaluate E --collection F": "write `drkit evaluate --encoder E --collection F`",
    "evaluate a.trec qrels.txt": "write `drkit evaluate a.trec --qrels qrels.txt`",
    "evaluate qrels.txt a.trec": "write `drkit evaluate a.trec --qrels qrels.txt`",
    "evaluate qrels.txt --qrels a.trec": "write `drkit evaluate RUN --qrels qrels.txt`",
    # Files and folders.
    "compose --collection nowhere": "no such file or folder: nowhere; give a path",
    "compose --collection no/where.jsonl": "no such file or folder: no/where.jsonl",
    "compose --collection pydoc": "did you mean 'pydocs'?",
    "compose --collection biir:F": "no collection named 'biir'; did you mean 'beir'?",
    "init nowhere": "no such file or folder: nowhere",
    "mine --miner bm25 --collection nowhere -o n.jsonl": "no such file or folder: nowhere",
    "init empty": "empty has no files; give a folder of .md or .txt files",
    "init E": "E is an encoder, not texts: --encoder E",
    "compose --collection R": "R is a run, not texts; give the collection that it was made from: --collection beir:F",
    "init a.trec": "a.trec ends in .trec, which no format reads",
    "init bad.jsonl": "error: bad.jsonl:1: malformed JSON",
    "init none.jsonl": "error: none.jsonl has no passages",
    "init bad.parquet": "error: bad.parquet: cannot be read as Parquet",
    "run nowhere": "no such file or folder: nowhere; give a run",
    "run F": "F is not a run (missing recipe.toml)",
    "search F words": "F is neither a run (missing recipe.toml) nor an index (missing index.json)",
    "search E words": "E is neither a run (missing recipe.toml) nor an index (missing index.json)",
    "show R": "'R' is a path; read R/recipe.toml",
    "show pmii": "did you mean 'pmi'?",
    "list pmi": "'pmi' is a masker: `drkit show masker pmi`",
    # Numbers, measures, engines, models.
    "search R words -k 0": "must be at least 1, got 0",
    "serve R --port 99999": "must be at most 65,535, got 99999",
    "compose --set evaluation.measures=ndcg_cut_10": "did you mean 'nDCG@10'",
    "evaluate a.trec --qrels qrels.txt -m recip_rank": "did you mean 'RR'",
    "evaluate a.trec --qrels qrels.txt -m hit@1": "did you mean 'Success@1'",
    "compose --engine spark --dry-run": "no engine named 'spark'",
    "compose --miner bm25 --miner cross-encoder-filter:./none": "no folder './none' exists, and it cannot be a hub id",
    "compose --miner bm25 --miner cross-encoder-filter:E": "'E' is not a cross-encoder",
}
# Errors of several lines: a line for what a file might be read as.
SEVERAL = {
    "init bad.csv": (
        "columns: a, b",
        "as texts",
        "as pairs of a query and a text",
        "--columns query=COLUMN,text=COLUMN",
    ),
    "init nokeys.jsonl": ("columns: a, b", "as texts", "as pairs of a query and a text", "--columns text=COLUMN"),
    "compose --set dev_share=1 --set evaluation.metric=a": ("collection.dev_share=1", "evaluation.measures=a"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an encoder in E, texts in F, a run in R, and files of every kind."""
    monkeypatch.chdir(tmp_path)
    for folder in ("E", "F", "R", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "E" / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (tmp_path / "F" / "a.md").write_text("# One\nA text about pipes.\n")
    (tmp_path / "R" / "recipe.toml").write_text('[collection]\nuse = "beir"\npath = "F"\n')
    (tmp_path / "a.trec").write_text("q1 Q0 d1 1 2.0 t\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
    (tmp_path / "two.toml").write_text(
        'schema = 1\nname = "x"\n[[collection]]\nuse = "beir"\n[[collection]]\nuse = "beir"\n'
    )
    (tmp_path / "bad.jsonl").write_text("hello\n")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "nokeys.jsonl").write_text('{"a": 1, "b": "x"}\n')
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1xxxx")


@pytest.mark.parametrize("line", LINES)
def test_a_mistake_leads_to_the_line_to_type(line, place, run_drkit):
    code, out, err = run_drkit(*shlex.split(line))
    assert (code, out) == (2, "")
    assert LINES[line] in err
    errors = [one for one in err.splitlines() if not one.startswith("[")]  # after the name of the step that has begun
    assert len(errors) == 1, err
    assert errors[0].startswith("error: ")


@pytest.mark.parametrize("line", SEVERAL)
def test_several_problems_have_a_line_each(line, place, run_drkit):
    code, _, err = run_drkit(*shlex.split(line))
    assert code == 2
    assert all(said in err for said in SEVERAL[line]), err
    assert "hf" not in err
    assert "tevatron" not in err


def test_without_a_command_there_is_help(run_drkit):
    for arguments in ([], ["inspect"]):
        code, out, err = run_drkit(*arguments)
        assert (code, err) == (0, "")
        assert out == run_drkit(*arguments, "--help")[1]


def test_commands_to_type_instead_exist():
    lines = {line for found in _COMMANDS.values() for line in found if not line.startswith("--")}
    assert {line.split()[0] for line in lines} <= {*cli.list_commands(None)}


def test_epochs_decide_where_a_recipe_has_steps(place, run_drkit):
    given = ("compose", "--dry-run", "--json", "--set", "finetune.num_train_epochs=2")
    recipe = json.loads(run_drkit(*given)[1])["recipe"]
    assert (recipe["finetune"]["max_steps"], recipe["finetune"]["num_train_epochs"]) == (-1, 2)
    assert recipe["pretrain"]["max_steps"] > 0
    both = json.loads(run_drkit(*given, "--set", "finetune.max_steps=7")[1])["recipe"]
    assert both["finetune"]["max_steps"] == 7


def test_an_encoder_that_is_no_folder_is_said_to_be_of_the_hub(place, run_drkit):
    note = "no folder {} here: it is looked up on the Hugging Face hub"
    for name in ("runs/lost", "bert-base-uncased"):
        assert note.format(name) in " ".join(run_drkit("compose", "--encoder", name, "--dry-run")[1].split())
    assert "Hugging Face hub" not in run_drkit("compose", "--dry-run")[1]
