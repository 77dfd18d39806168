#!/usr/bin/env bash
# sentence-transformers 6.2.0: the vector of a text depends on the other texts of its batch, if the encoder has a CNN
# module.
#
# `CNN` convolves over all positions of the batch and never reads the attention mask. At the end of a text a kernel of
# width 3 or 5 therefore reads the positions that pad it to the longest text of the batch. After a Transformer these are
# not zero: padding has hidden states as every token has. Encoded alone, the text ends with the convolution's zeros. We
# had expected what every other module gives: the same vector, up to rounding, in any batch. Without the CNN it is so.
# drkit: refuses such an encoder, since a text would not be found by its own vector.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  torch==2.13.0 sentence-transformers==6.2.0 transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 WORK=$work "$work/venv/bin/python" -W ignore - <<'PY'
import os
from importlib.metadata import version

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()
print("sentence-transformers", version("sentence-transformers"), "and torch", version("torch"))
torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"the cat sat on a mat and looked at every dog that passed".split()]
backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
backend.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
folder = os.path.join(os.environ["WORK"], "bert")
PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **names).save_pretrained(folder)
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)).save_pretrained(folder)


def cosine_of_short_text(*modules):
    """The cosine between the vectors of one text, encoded alone and beside a longer text."""
    model = SentenceTransformer(modules=[Transformer(folder), *modules], device="cpu")
    short, long = "the cat sat", "the cat sat on a mat and looked at every dog that passed"
    alone, beside = model.encode([short])[0], model.encode([short, long], batch_size=2)[0]
    return float(torch.cosine_similarity(torch.tensor(alone), torch.tensor(beside), dim=0))


plain = cosine_of_short_text(Pooling(16, "mean"))
narrow = cosine_of_short_text(CNN(16, out_channels=8, kernel_sizes=[1]), Pooling(8, "mean"))
usual = cosine_of_short_text(CNN(16, out_channels=8), Pooling(24, "mean"))
print(f"one text alone and beside a longer one, cosine of its vectors: without a CNN {plain:.6f}")
print(f"with a CNN of kernel size 1: {narrow:.6f}, of the usual sizes 1, 3 and 5: {usual:.6f}")
assert plain > 0.999999 and narrow > 0.999999, (plain, narrow)
assert usual < 0.99, usual
PY
