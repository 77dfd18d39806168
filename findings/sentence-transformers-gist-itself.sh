#!/usr/bin/env bash
# sentence-transformers 6.2.0: GISTEmbedLoss contrasts a text with itself where the guide finds its positive as close.
#
# Besides the passages, GIST contrasts a query with the other queries, and its passage with the other passages. Each of
# these two blocks has the text itself on its diagonal, with a cosine of 1, and nothing but the guide takes it out: what
# the guide scores above the positive is left out. Where the guide gives the positive 1, too, as in pairs of the same
# text with two dropouts (unsupervised SimCSE), the diagonals stay, and the loss cannot fall below log 3, however good
# the encoder is. We had expected that no text is its own negative, as in MultipleNegativesRankingLoss with the same two
# directions, which masks the diagonals.
# drkit: `gist` leaves out a text itself by its position, whatever the guide says.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  torch==2.13.0 sentence-transformers==6.2.0 transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 WORK=$work "$work/venv/bin/python" -W ignore - <<'PY'
import os
from importlib.metadata import version
from math import log

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()
print("sentence-transformers", version("sentence-transformers"), "and torch", version("torch"))
torch.manual_seed(0)
words = ["[PAD]", "[UNK]", *"cat river piano harbour winter engine".split()]
backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
folder = os.path.join(os.environ["WORK"], "bert")
names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **names).save_pretrained(folder)
sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
config = BertConfig(vocab_size=len(words), max_position_embeddings=32, initializer_range=1.0, **sizes)
BertModel(config).save_pretrained(folder)
model = SentenceTransformer(modules=[Transformer(folder), Pooling(32, "mean")], device="cpu").eval()
texts = words[2:]  # one word each, far apart


def loss_of(loss):
    """The loss of pairs whose two texts are the same."""
    with torch.no_grad():
        return float(loss([model.preprocess(texts), model.preprocess(texts)], None))


plain = loss_of(GISTEmbedLoss(model, model, contrast_anchors=False, contrast_positives=False))
directions = ["query_to_doc", "query_to_query", "doc_to_doc"]
ranking = MultipleNegativesRankingLoss(model, scale=100.0, directions=directions, partition_mode="joint")
usual = loss_of(GISTEmbedLoss(model, model))
print(f"pairs of the same text, temperature .01: passages alone {plain:.4f}; with queries and passages among each other:")
print(f"MultipleNegativesRankingLoss {loss_of(ranking):.4f}, GISTEmbedLoss {usual:.4f} (log 3 is {log(3):.4f})")
assert plain < 0.1 and loss_of(ranking) < 0.1, (plain, loss_of(ranking))
assert usual > log(3), usual
PY
