"""The script of the page on late chunking: its vectors are those of formulas worked out in float64."""

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from drkit.encoders import EncoderCard
from drkit.search import TextEncoder
from drkit.testing import toys

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "late-chunking.md"


@pytest.fixture(scope="module")
def script():
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = {"__name__": "late"}
    exec(compile(text, "late.py", "exec"), found)
    return found


@pytest.fixture(scope="module")
def encoder():
    card = EncoderCard(pooling="mean", query_length=16, passage_length=40)
    return TextEncoder(card, toys.toy_encoder(3).model.base_model.eval(), toys.toy_tokenizer())


def test_passages_are_pooled_from_the_states_of_the_whole_window(script, encoder):
    passages = [*toys.toy_texts()[:9]]
    windows = list(script["windows"](encoder, passages))
    assert [passage for window in windows for passage in window] == passages
    assert 1 < len(windows) < len(passages)
    found = script["late_chunks"](encoder, passages)
    expected = []
    for window in windows:
        pieces = [encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in window]
        ids = [encoder.tokenizer.cls_token_id, *chain.from_iterable(pieces), encoder.tokenizer.sep_token_id]
        assert len(ids) <= 40
        with torch.inference_mode():
            states = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()
        begin = 1
        for piece in pieces:
            mean = states[begin : begin + len(piece)].mean(0)
            expected.append(mean / np.linalg.norm(mean))
            begin += len(piece)
    assert np.allclose(found, np.stack(expected), atol=1e-6)
    alone = encoder.encode_passages(passages)
    assert not np.allclose(found, alone, atol=1e-3), "they have read each other"


def test_a_document_has_the_score_of_its_best_passage(script):
    vectors = [np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)[2:]]
    scores = script["max_p"](np.array([[0.1, 0.7, 0.2]], np.float32), vectors)
    assert np.allclose(scores, [[0.7, 0.2]])
