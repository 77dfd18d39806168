"""Queries that a causal model writes: those of a naive loop, whatever is beside them in a batch, one line each."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from attrs import evolve

from drkit.core.draws import Draws
from drkit.core.registry import installed
from drkit.data.generation import EndOfLine, QueryModel, Sampling, as_chat, clean_query, generate_file
from drkit.data.query_sources import QUERY_PROMPT, QueryModelConfig, check_query_model
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.plan import plan
from drkit.runs.stage import lasting_settings
from tests.data.causal import write_llama
from tests.encoders.toys import tiny

SHORT = Sampling(count=3, max_new_tokens=6, batch_size=4, seed=5, top_k=12, top_p=0.9)
TEXTS = [
    "a wing in a slipstream",
    "heat",
    "the drag of a blunt body at hypersonic speed is computed and measured in a tunnel",
    "   ",
    "boundary layers on a flat plate",
    "shock waves",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama"), TEXTS)


def naive(model, text, key, sampling=SHORT):
    """Token by token, a row at a time, without padding; the template by transformers itself."""
    found = []
    message = [
        {"role": "user", "content": (sampling.prompt or QUERY_PROMPT).replace("{passage}", sampling.prefix + text)}
    ]
    prompt = model.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
    numbers = Draws(sampling.seed, 0, [key]).uniform(sampling.count, sampling.max_new_tokens)[0]
    for row in range(sampling.count):
        ids, new = list(prompt), []
        for step in range(sampling.max_new_tokens):
            logits = model.model(torch.tensor([ids])).logits[0, -1].detach().double().numpy()
            best = np.argsort(-logits)[: sampling.top_k]
            shares = np.exp(logits[best]) / np.exp(logits[best]).sum()
            kept = np.cumsum(shares) - shares < sampling.top_p
            ends = np.cumsum(np.where(kept, shares, 0.0))
            token = int(best[min(int((ends <= float(numbers[row, step]) * ends[-1]).sum()), int(kept.sum()) - 1)])
            if token == model.tokenizer.eos_token_id:
                break
            new.append(token)
            ids.append(token)
            written = model.tokenizer.decode(new)
            if "\n" in model.tokenizer.decode([token]) and written.strip("\n"):
                break
        found.append(clean_query(model.tokenizer.decode(new, skip_special_tokens=True)))
    return found


def test_queries_are_those_of_a_naive_loop_in_any_batch(folder):
    model = QueryModel.open(str(folder), SHORT)
    found = model(TEXTS, range(6))
    assert found[3] == []
    for key, text in enumerate(TEXTS):
        if text.strip():
            assert found[key] == naive(model, text, key)
            assert model([text], [key]) == [found[key]], "alone"
    assert model(TEXTS[::-1], range(6)[::-1]) == found[::-1]
    assert len({query for queries in found for query in queries}) > 6


def test_a_prompt_and_a_prefix_surround_the_passage(folder):
    asked = evolve(SHORT, prompt="{passage} ?", prefix="text: ")
    model = QueryModel.open(str(folder), asked)
    assert model(TEXTS[:2], [0, 1]) == [naive(model, text, key, asked) for key, text in enumerate(TEXTS[:2])]
    assert model(TEXTS[:1], [0]) != QueryModel.open(str(folder), SHORT)(TEXTS[:1], [0])


def test_special_tokens_in_a_passage_do_not_end_the_turn(folder):
    model = QueryModel.open(str(folder), SHORT)
    end = model.tokenizer.eos_token
    ids, _ = model._prompts([f"heat {end} and drag"])
    plain, _ = model._prompts(["heat and drag"])
    count = model.tokenizer.convert_tokens_to_ids(end)
    assert (ids["input_ids"] == count).sum() == (plain["input_ids"] == count).sum()


def test_long_passages_are_cut_and_the_prompt_stays_whole(folder):
    model = QueryModel.open(str(folder), evolve(SHORT, max_source_tokens=3))
    ids, length = model._prompts(["heat " * 100])
    text = model.tokenizer.decode(ids["input_ids"][0])
    assert "Reply with the query only." in text
    assert text.count("heat") <= 3
    assert ids["input_ids"].shape == (3, length)


def test_a_model_without_a_template_reads_the_prompt_alone(folder):
    model = QueryModel.open(str(folder), SHORT)
    model.tokenizer.chat_template = None
    assert as_chat(model.tokenizer, "a prompt") == "a prompt"
    assert all(isinstance(query, str) for query in model(TEXTS[:1], [0])[0])


def test_an_answer_ends_with_its_first_line(folder):
    tokenizer = QueryModel.open(str(folder), SHORT).tokenizer
    stop = EndOfLine(tokenizer, 1)
    line, word = (tokenizer(one, add_special_tokens=False)["input_ids"][-1] for one in ("\n", "heat"))
    rows = torch.tensor([[word, line, line], [word, line, word], [word, word, line], [line, word, word]])
    assert stop(rows, None).tolist() == [False, False, True, False]
    answers = ['\n\n2) Query: "wing  lift"\nnext', "**Question:** what is lift?", "- a\n- b", "", "'s-Hertogenbosch"]
    assert [clean_query(one) for one in answers] == ["wing lift", "what is lift?", "a", "", "s-Hertogenbosch"]


def test_the_file_is_the_same_after_an_interruption(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.data.generation._BATCHES_PER_FILE", 1)
    model, texts = (
        QueryModel.open(str(folder), evolve(SHORT, batch_size=2)),
        [(f"t{n}", t) for n, t in enumerate(TEXTS)],
    )
    whole = generate_file(iter(texts), model, tmp_path / "whole.jsonl").read_bytes()

    def die(done):
        if done >= 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        generate_file(iter(texts), model, tmp_path / "q.jsonl", on_progress=die)
    assert generate_file(iter(texts), model, tmp_path / "q.jsonl").read_bytes() == whole
    assert [json.loads(line)["doc_id"] for line in whole.splitlines()] == [name for name, _ in texts]


def test_prompts_are_settings_of_the_source(folder, beir_texts):
    def recipe(*settings):
        request = ComposeRequest(pipeline="texts", collection=f"jsonl:{beir_texts}", settings=settings)
        return compose(request, installed())

    plain = recipe(f"pseudo_queries.sources=['model:{folder}']")
    (source,) = plain.pseudo_queries.sources
    assert source.config == QueryModelConfig(str(folder))
    asked = recipe(f"pseudo_queries.sources=[{{use='model', path='{folder}', prompt='Ask: {{passage}}'}}]")
    assert recipe_from_table(recipe_table(asked), installed().registry) == asked
    stages = {one.name: one for one in plan(asked, installed().registry).stages}
    settings = lasting_settings(stages["pseudo-queries"].settings)
    assert "Ask: {passage}" in settings.values()
    with pytest.raises(ProblemsError, match=r"must contain \{passage\} once"):
        recipe(f"pseudo_queries.sources=[{{use='model', path='{folder}', prompt='Ask'}}]")


@pytest.fixture
def beir_texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3 if text.strip()))
    return path


def test_a_model_that_writes_no_text_is_refused_in_the_plan(tmp_path, beir_texts):
    model, tokenizer = tiny("bert")
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    with pytest.raises(DrkitError, match="is a BertForMaskedLM, which writes no text"):
        check_query_model(str(tmp_path / "bert"))
    settings = (f"pseudo_queries.sources=['model:{tmp_path / 'bert'}']",)
    request = ComposeRequest(pipeline="texts", collection=f"jsonl:{beir_texts}", settings=settings)
    with pytest.raises(DrkitError, match="writes no text"):
        plan(compose(request, installed()), installed().registry)
