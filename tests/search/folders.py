"""Encoder folders as sentence-transformers 5 and 6 save them, from tiny random models, by what they declare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer import modules as dense_modules
from sentence_transformers.sparse_encoder import modules as sparse_modules
from tokenizers import Tokenizer
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    MPNetConfig,
    RobertaConfig,
    T5Config,
    T5EncoderModel,
    XLNetConfig,
)

from tests.search.toys import VOCABULARY, WORDS, masked_lm, tokenizer

HIDDEN, POSITIONS = 32, 64
Build = Callable[[Path], Any]
CASES: dict[str, Build] = {}
REFUSED: dict[str, tuple[Build, str]] = {}


def case(name: str) -> Callable[[Build], Build]:
    """Register a folder whose vectors must be those of sentence-transformers."""

    def add(build: Build) -> Build:
        CASES[name] = build
        return build

    return add


def refused(name: str, pattern: str) -> Callable[[Build], Build]:
    """Register a folder that must be refused with a message that matches the pattern."""

    def add(build: Build) -> Build:
        REFUSED[name] = build, pattern
        return build

    return add


def backbone(folder: Path, seed: int = 0, words: Any = None, lm: bool = False) -> Path:
    """Write a bare BERT with its tokenizer."""
    model = masked_lm(seed)
    (model if lm else model.bert).save_pretrained(folder)
    words = words or tokenizer()
    words.model_max_length = POSITIONS
    words.save_pretrained(folder)
    return folder


def transformer(folder: Path, seed: int = 0, words: Any = None, **how: Any) -> Any:
    """Return a Transformer module of a tiny BERT."""
    lm = how.get("transformer_task") == "fill-mask"
    plain = backbone(folder.with_name(f"{folder.name}-bare{seed}"), seed, words, lm)
    return dense_modules.Transformer(str(plain), **how)


def pooling(mode: Any = "mean", **how: Any) -> Any:
    return dense_modules.Pooling(HIDDEN, pooling_mode=mode, **how)


def save(folder: Path, *modules: Any, **how: Any) -> Path:
    """Save a `SentenceTransformer` of these modules."""
    SentenceTransformer(modules=list(modules), device="cpu", **how).save(str(folder), create_model_card=False)
    return folder


def plain(folder: Path, *modules: Any, mode: Any = "mean", **how: Any) -> Path:
    """Save a `SentenceTransformer` of a transformer, a pooling and these modules."""
    return save(folder, transformer(folder), pooling(mode), *modules, **how)


def change(path: Path, **values: Any) -> None:
    """Change the keys of a JSON file; a value of None removes one."""
    found = {**(json.loads(path.read_text()) if path.is_file() else {}), **values}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def seeded(module: Any, scale: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(7)
    for weight in module.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * scale
    return module


# Poolings
for _mode in ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"):
    CASES[f"pooling {_mode}"] = lambda folder, mode=_mode: plain(folder, mode=mode)
CASES["pooling cls and mean"] = lambda folder: plain(folder, mode=("cls", "mean"))
CASES["pooling max, mean and last"] = lambda folder: plain(folder, mode=("max", "mean", "lasttoken"))
CASES["pooling in a list"] = lambda folder: plain(folder, mode=["cls"])


@case("pooling without the prompt")
def _(folder: Path) -> None:
    words = transformer(folder)
    save(folder, words, pooling(include_prompt=False), prompts={"query": "file ", "document": "number "})


# Modules
CASES["normalised"] = lambda folder: plain(folder, dense_modules.Normalize())
CASES["normalised, dot"] = lambda folder: plain(folder, dense_modules.Normalize(), similarity_fn_name="dot")
CASES["dot"] = lambda folder: plain(folder, similarity_fn_name="dot")
CASES["normalised tokens"] = lambda folder: save(
    folder,
    transformer(folder),
    dense_modules.Normalize("token_embeddings"),
    pooling(),
    similarity_fn_name="dot",
)
for _name, _activation in {"tanh": torch.nn.Tanh(), "identity": None, "gelu": torch.nn.GELU()}.items():
    for _bias in (True, False):
        CASES[f"dense {_name} {'with' if _bias else 'without'} bias"] = lambda folder, a=_activation, b=_bias: plain(
            folder, seeded(dense_modules.Dense(HIDDEN, 8, bias=b, activation_function=a), 0.2), similarity_fn_name="dot"
        )
CASES["dense with a residual"] = lambda folder: plain(
    folder, seeded(dense_modules.Dense(HIDDEN, 8, use_residual=True), 0.2)
)
CASES["two dense"] = lambda folder: plain(
    folder, truncation(16), seeded(dense_modules.Dense(16, 8), 0.2), similarity_fn_name="dot"
)
CASES["two truncations"] = lambda folder: plain(folder, truncation(16), truncation(8, 16), similarity_fn_name="dot")
CASES["dense of tokens"] = lambda folder: save(
    folder,
    transformer(folder),
    seeded(dense_modules.Dense(HIDDEN, HIDDEN, module_input_name="token_embeddings"), 0.2),
    pooling(),
)
CASES["truncating dense"] = lambda folder: plain(folder, truncation(8), similarity_fn_name="dot")
CASES["truncating dense, normalised"] = lambda folder: plain(folder, truncation(8), dense_modules.Normalize())
CASES["normalised, truncating dense"] = lambda folder: plain(
    folder, dense_modules.Normalize(), truncation(8), similarity_fn_name="dot"
)
CASES["truncating dense with a residual"] = lambda folder: plain(
    folder, truncation(HIDDEN, use_residual=True), similarity_fn_name="dot"
)
CASES["layer norm"] = lambda folder: plain(folder, seeded(dense_modules.LayerNorm(HIDDEN)), similarity_fn_name="dot")
CASES["dropout"] = lambda folder: plain(folder, dense_modules.Dropout(0.5))
CASES["bag of words"] = lambda folder: save(folder, dense_modules.BoW(WORDS, {"file": 2.0}))


def truncation(kept: int, width: int = HIDDEN, **how: Any) -> Any:
    dense = dense_modules.Dense(width, kept, bias=False, activation_function=None, **how)
    dense.linear.weight.data = torch.eye(kept, width)
    return dense


@case("layers weighted")
def _(folder: Path) -> None:
    words = transformer(folder, config_kwargs={"output_hidden_states": True})
    save(folder, words, dense_modules.WeightedLayerPooling(HIDDEN, num_hidden_layers=2, layer_start=1), pooling())


def word_weights(folder: Path, weights: Mapping[str, float], mode: str = "mean", unknown: float = 1) -> Path:
    return save(folder, transformer(folder), dense_modules.WordWeights(VOCABULARY, weights, unknown), pooling(mode))


CASES["word weights"] = lambda folder: word_weights(folder, {"file": 3.0, "number": 0.1, "[CLS]": 0.0})
CASES["word weights, max"] = lambda folder: word_weights(folder, {"file": 3.0}, mode="max")
CASES["word weights, negative"] = lambda folder: word_weights(folder, {"file": -3.0}, unknown=2)
CASES["word weights twice"] = lambda folder: save(
    folder,
    transformer(folder),
    *(dense_modules.WordWeights(VOCABULARY, {"file": 3.0}) for _ in range(2)),
    pooling(),
)


def word_embeddings() -> Any:
    words = dense_modules.tokenizer.WhitespaceTokenizer(["[PAD]", *WORDS], stop_words=["from"])
    table = torch.randn(len(WORDS) + 1, 12, generator=torch.Generator().manual_seed(1))
    return dense_modules.WordEmbeddings(words, table.numpy(), max_seq_length=20)


CASES["word embeddings"] = lambda folder: save(folder, word_embeddings(), dense_modules.Pooling(12))
CASES["lstm"] = lambda folder: save(
    folder, word_embeddings(), seeded(dense_modules.LSTM(12, 8), 0.2), dense_modules.Pooling(16)
)


# Static encoders
def static(folder: Path, backend: Any = None, *modules: Any, **how: Any) -> Path:
    table = torch.randn(len(VOCABULARY), 12, generator=torch.Generator().manual_seed(2))
    words = backend or tokenizer().backend_tokenizer
    return save(folder, dense_modules.StaticEmbedding(words, embedding_weights=table), *modules, **how)


CASES["static"] = lambda folder: static(folder)
CASES["static, normalised"] = lambda folder: static(folder, None, dense_modules.Normalize(), similarity_fn_name="dot")
CASES["static, dense"] = lambda folder: static(folder, None, dense_modules.Dense(12, 6), similarity_fn_name="dot")
CASES["static, truncate_dim"] = lambda folder: static(folder, truncate_dim=6)
CASES["static, prompts"] = lambda folder: static(folder, prompts={"query": "file ", "document": "number "})


@case("static with a length")
def _(folder: Path) -> None:
    words = tokenizer().backend_tokenizer
    words.enable_truncation(9)
    static(folder, words, similarity_fn_name="dot")


@case("static, cut on the left")
def _(folder: Path) -> None:
    words = tokenizer().backend_tokenizer
    words.enable_truncation(9, direction="left")
    static(folder, words, similarity_fn_name="dot")


@case("static of another tokenizer")
def _(folder: Path) -> None:
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    static(folder, words)


@case("static of model2vec")
def _(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    static(folder)
    file = next(folder.rglob("model.safetensors"))
    table = load_file(file)["embedding.weight"]
    weights = torch.linspace(0.5, 2, len(table))
    mapping = torch.arange(len(table)).flip(0)
    new = {"embeddings": table.contiguous(), "weights": weights, "mapping": mapping}
    save_file(new, file)


# Lengths and readings of texts
def with_reading(folder: Path, name: str = "sentence_bert_config.json", **values: Any) -> Path:
    """Save a plain encoder whose transformer is read as version 5 declares it, or with further settings."""
    plain(folder)
    change(folder / "sentence_bert_config.json", **values)
    (folder / "sentence_bert_config.json").rename(folder / name)
    return folder


for _family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"):
    CASES[f"length of {_family}"] = lambda folder, family=_family: with_reading(
        folder, f"sentence_{family}_config.json", max_seq_length=11
    )


@case("the first file with settings")
def _(folder: Path) -> None:
    with_reading(folder, "sentence_albert_config.json", max_seq_length=11)
    (folder / "sentence_bert_config.json").write_text("{}")
    change(folder / "sentence_xlnet_config.json", max_seq_length=5)


def version_5(folder: Path, length: int | None = 11, **values: Any) -> Path:
    """Save a plain encoder in the layout of version 5.1."""
    plain(folder, dense_modules.Normalize())
    old = {"max_seq_length": length, "do_lower_case": False, **values}
    (folder / "sentence_bert_config.json").write_text(json.dumps(old))
    flags = {flag: flag == "pooling_mode_max_tokens" for flag in FLAGS}
    settings = {"word_embedding_dimension": HIDDEN, **flags, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    (folder / "2_Normalize" / "config.json").unlink(missing_ok=True)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    change(folder / "config_sentence_transformers.json", model_type=None, prompts={"query": "", "document": ""})
    return folder


FLAGS = [
    f"pooling_mode_{mode}"
    for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
]
CASES["version 5"] = version_5
CASES["version 5 without a length"] = lambda folder: version_5(folder, None)
CASES["version 5, lower case"] = lambda folder: version_5(folder, do_lower_case=True)
CASES["version 5, arguments of the tokenizer"] = lambda folder: version_5(
    folder, None, tokenizer_args={"model_max_length": 7}
)
CASES["version 5, arguments of the model"] = lambda folder: version_5(
    folder, model_args={"attn_implementation": "eager"}
)
CASES["version 5, arguments of the configuration"] = lambda folder: version_5(
    folder, config_args={"hidden_act": "relu"}
)


@case("version 4 without flags")
def _(folder: Path) -> None:
    version_5(folder)
    change(folder / "1_Pooling" / "config.json", **dict.fromkeys(FLAGS, False))


@case("version 2 without settings of the model")
def _(folder: Path) -> None:
    version_5(folder)
    (folder / "config_sentence_transformers.json").unlink()


CASES["length of queries"] = lambda folder: with_reading(folder, query_length=7)
CASES["lengths of queries and documents"] = lambda folder: with_reading(folder, query_length=7, document_length=20)
CASES["processing of texts"] = lambda folder: with_reading(folder, processing_kwargs={"text": {"max_length": 9}})
CASES["processing without special tokens"] = lambda folder: with_reading(
    folder, processing_kwargs={"text": {"add_special_tokens": False}}
)
CASES["processing of all"] = lambda folder: with_reading(folder, processing_kwargs={"common": {"truncation": False}})
CASES["padded inputs"] = lambda folder: with_reading(folder, unpad_inputs=False)
CASES["query expansion"] = lambda folder: with_reading(
    folder, query_expansion={"strategy": "fixed", "attend": True, "length": 16, "token": "[MASK]"}
)
CASES["pooled output of the model"] = lambda folder: save(
    folder,
    transformer(
        folder,
        modality_config={"text": {"method": "forward", "method_output_name": "pooler_output"}},
        module_output_name="sentence_embedding",
    ),
)
CASES["embeddings as hidden states"] = lambda folder: with_reading(
    folder,
    modality_config={"text": {"method": "forward", "method_output_name": ["hidden_states", 0]}},
    module_output_name="token_embeddings",
)
CASES["logits pooled"] = lambda folder: save(
    folder,
    transformer(folder, transformer_task="fill-mask"),
    dense_modules.Pooling(len(VOCABULARY), pooling_mode="mean"),
)


def of_tokenizer(folder: Path, **options: Any) -> Path:
    """Save a plain encoder whose tokenizer has other options."""
    words = tokenizer()
    for name, value in options.items():
        setattr(words, name, value)
    return save(folder, transformer(folder, words=words, max_seq_length=11), pooling(), similarity_fn_name="dot")


CASES["cut on the left"] = lambda folder: of_tokenizer(folder, truncation_side="left")
CASES["padded on the left"] = lambda folder: of_tokenizer(folder, padding_side="left")
CASES["split special tokens"] = lambda folder: of_tokenizer(folder, split_special_tokens=True)


@case("truncation in tokenizer.json")
def _(folder: Path) -> None:
    plain(folder)
    cut = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=cut)


@case("cased words")
def _(folder: Path) -> None:
    version_5(folder, do_lower_case=True)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


# Prompts
def with_prompts(folder: Path, prompts: Mapping[str, str], default: str | None = None) -> Path:
    return plain(folder, prompts=dict(prompts), default_prompt_name=default)


CASES["prompts"] = lambda folder: with_prompts(folder, {"query": "file ", "document": "number "})
CASES["prompt of queries alone"] = lambda folder: with_prompts(folder, {"query": "file "})
CASES["prompts of two kinds of documents"] = lambda folder: with_prompts(
    folder, {"document": "number ", "passage": "file "}
)
CASES["default prompt"] = lambda folder: with_prompts(folder, {"query": "file ", "other": "number "}, "other")
CASES["default prompt of queries"] = lambda folder: with_prompts(folder, {"query": "file "}, "query")
CASES["prompts of other names"] = lambda folder: with_prompts(folder, {"search_query": "file ", "clustering": "a "})

# Settings of the model
CASES["truncate_dim"] = lambda folder: plain(folder, truncate_dim=8)
CASES["truncate_dim, dot"] = lambda folder: plain(folder, truncate_dim=8, similarity_fn_name="dot")
CASES["truncate_dim, normalised"] = lambda folder: plain(folder, dense_modules.Normalize(), truncate_dim=8)
CASES["truncate_dim, normalised, dot"] = lambda folder: plain(
    folder, dense_modules.Normalize(), truncate_dim=8, similarity_fn_name="dot"
)
CASES["truncate_dim and a truncating dense"] = lambda folder: plain(
    folder, truncation(16), truncate_dim=8, similarity_fn_name="dot"
)
CASES["truncate_dim below a truncating dense"] = lambda folder: plain(
    folder, truncation(6), truncate_dim=8, similarity_fn_name="dot"
)


@case("requirements")
def _(folder: Path) -> None:
    plain(folder)
    change(folder / "config_sentence_transformers.json", requirements={"sentence_transformers": ">=5"})


@case("a key that nobody saves")
def _(folder: Path) -> None:
    plain(folder)
    change(folder / "config_sentence_transformers.json", query_prefix="file ")


@case("arguments of a module")
def _(folder: Path) -> None:
    plain(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["kwargs"] = ["task"]
    (folder / "modules.json").write_text(json.dumps(modules))


@case("files of another runtime beside")
def _(folder: Path) -> None:
    plain(folder)
    for name in ("onnx/model.onnx", "openvino/openvino_model.xml", "onnx/model_qint8_avx512.onnx"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")


@case("half precision")
def _(folder: Path) -> None:
    first = transformer(folder)
    first.model.half()
    save(folder, first, pooling())


@case("transformer in a folder of its own")
def _(folder: Path) -> None:
    plain(folder)
    (folder / "0_Transformer").mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))


@case("weights in several files")
def _(folder: Path) -> None:
    plain(folder)
    (folder / "model.safetensors").unlink()
    masked_lm().bert.save_pretrained(folder, max_shard_size="10KB")


CHAT = "{% for message in messages %}file {{ message['content'] }} number{% endfor %}"
CASES["chat template"] = lambda folder: of_tokenizer(folder, chat_template=CHAT)


# Other architectures
_SMALL = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
ARCHITECTURES: Mapping[str, Any] = {
    "roberta": RobertaConfig(**_SMALL, max_position_embeddings=POSITIONS + 2),
    "mpnet": MPNetConfig(**_SMALL, max_position_embeddings=POSITIONS + 2),
    "electra": ElectraConfig(**_SMALL, embedding_size=HIDDEN, max_position_embeddings=POSITIONS),
    "distilbert": DistilBertConfig(dim=HIDDEN, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=POSITIONS),
    "bert": BertConfig(**_SMALL, max_position_embeddings=POSITIONS, position_embedding_type="absolute"),
}


def of_architecture(folder: Path, config: Any) -> Path:
    config.vocab_size, config.pad_token_id = len(VOCABULARY), 0
    torch.manual_seed(3)
    bare = backbone(folder.with_name(f"{folder.name}-bare"))
    for file in (*bare.glob("*.safetensors"), bare / "config.json"):
        file.unlink()
    model = AutoModelForMaskedLM.from_config(config).base_model
    for weight in model.parameters():
        weight.data.mul_(5)
    model.save_pretrained(bare)
    return save(folder, dense_modules.Transformer(str(bare), max_seq_length=POSITIONS), pooling("mean"))


for _name, _config in ARCHITECTURES.items():
    CASES[f"architecture {_name}"] = lambda folder, config=_config: of_architecture(folder, config)


@case("architecture xlnet")
def _(folder: Path) -> None:
    from transformers import XLNetModel

    bare = backbone(folder.with_name(f"{folder.name}-bare"))
    for file in (*bare.glob("*.safetensors"), bare / "config.json"):
        file.unlink()
    torch.manual_seed(3)
    XLNetModel(XLNetConfig(vocab_size=len(VOCABULARY), d_model=32, n_layer=2, n_head=2, d_inner=48)).save_pretrained(
        bare
    )
    save(folder, dense_modules.Transformer(str(bare), max_seq_length=POSITIONS), pooling("mean"))


@case("architecture t5, without a limit of length")
def _(folder: Path) -> None:
    bare = backbone(folder.with_name(f"{folder.name}-bare"))
    for file in (*bare.glob("*.safetensors"), bare / "config.json"):
        file.unlink()
    change(bare / "tokenizer_config.json", model_max_length=None)
    torch.manual_seed(3)
    sizes = {"d_model": HIDDEN, "d_kv": 16, "num_layers": 2, "num_heads": 2, "d_ff": 48}
    T5EncoderModel(T5Config(vocab_size=len(VOCABULARY), **sizes)).save_pretrained(bare)
    save(folder, dense_modules.Transformer(str(bare)), pooling("mean"))


# Routers
def routes(folder: Path, query: list[Any], document: list[Any], *behind: Any, **how: Any) -> Path:
    return save(folder, dense_modules.Router.for_query_document(query, document), *behind, **how)


def side(folder: Path, seed: int, mode: str = "mean", **how: Any) -> list[Any]:
    return [transformer(folder, seed, **how), pooling(mode)]


CASES["router"] = lambda folder: routes(folder, side(folder, 1), side(folder, 2))
CASES["router with lengths"] = lambda folder: routes(
    folder, side(folder, 1, max_seq_length=7), side(folder, 2, max_seq_length=11)
)
CASES["router with a shared module"] = lambda folder: routes(
    folder, side(folder, 1), side(folder, 2), dense_modules.Normalize()
)
CASES["router with two poolings"] = lambda folder: routes(folder, side(folder, 1, "cls"), side(folder, 2, "mean"))
CASES["router with two denses"] = lambda folder: routes(
    folder,
    [*side(folder, 1), seeded(dense_modules.Dense(HIDDEN, 8), 0.2)],
    [*side(folder, 2), seeded(dense_modules.Dense(HIDDEN, 8, bias=False), 0.2)],
)
CASES["router behind the pooling"] = lambda folder: save(
    folder,
    *side(folder, 1),
    dense_modules.Router.for_query_document(
        [seeded(dense_modules.Dense(HIDDEN, 8), 0.2)], [seeded(dense_modules.Dense(HIDDEN, 8, bias=False), 0.2)]
    ),
)
CASES["router of a static and a transformer"] = lambda folder: routes(
    folder,
    [dense_modules.StaticEmbedding(tokenizer().backend_tokenizer, embedding_dim=HIDDEN)],
    side(folder, 2),
    similarity_fn_name="dot",
)


@case("router of version 4")
def _(folder: Path) -> None:
    routes(folder, side(folder, 1), side(folder, 2))
    (folder / "router_config.json").rename(folder / "config.json")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Asym"}]
    (folder / "modules.json").write_text(json.dumps(modules))


CASES["router by mappings"] = lambda folder: save(
    folder,
    dense_modules.Router(
        {"query": side(folder, 1), "document": side(folder, 2)},
        route_mappings={("query", None): "document", ("document", None): "query"},
    ),
)
CASES["router with prompts"] = lambda folder: routes(
    folder, side(folder, 1), side(folder, 2), prompts={"query": "file ", "document": "number "}, truncate_dim=8
)


# Sparse encoders
def sparse(folder: Path, *modules: Any, **how: Any) -> Path:
    SparseEncoder(modules=list(modules), device="cpu", **how).save(str(folder), create_model_card=False)
    return folder


def splade(folder: Path, seed: int = 0, **how: Any) -> list[Any]:
    return [transformer(folder, seed, transformer_task="fill-mask"), sparse_modules.SpladePooling(**how)]


CASES["splade"] = lambda folder: sparse(folder, *splade(folder))
CASES["splade, sum"] = lambda folder: sparse(folder, *splade(folder, pooling_strategy="sum"))
CASES["splade, log1p_relu"] = lambda folder: sparse(folder, *splade(folder, activation_function="log1p_relu"))
CASES["splade, top words"] = lambda folder: sparse(folder, *splade(folder), max_active_dims=3)
CASES["splade, cosine"] = lambda folder: sparse(folder, *splade(folder), similarity_fn_name="cosine")
CASES["splade with prompts"] = lambda folder: sparse(folder, *splade(folder), prompts={"query": "file "})

CASES["splade, normalised"] = lambda folder: sparse(folder, *splade(folder), dense_modules.Normalize())


@case("splade, lower case")
def _(folder: Path) -> None:
    sparse(folder, *splade(folder))
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


@case("splade of version 5")
def _(folder: Path) -> None:
    sparse(folder, *splade(folder))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 11, "do_lower_case": False}))
    settings = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": None}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(settings))
    kinds = [("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling")]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.sparse_encoder.models.{kind}"}
        for at, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


CASES["sparse autoencoder"] = lambda folder: sparse(
    folder, *side(folder, 0), sparse_modules.SparseAutoEncoder(HIDDEN, hidden_dim=48, k=8)
)
CASES["weights of words"] = lambda folder: sparse(folder, word_scores())
CASES["splade without inference of queries"] = lambda folder: sparse(
    folder, sparse_modules.Router.for_query_document([word_scores()], splade(folder))
)
CASES["splade of two encoders"] = lambda folder: sparse(
    folder, sparse_modules.Router.for_query_document(splade(folder, 1), splade(folder, 2))
)


def word_scores() -> Any:
    return sparse_modules.SparseStaticEmbedding(tokenizer(), weight=torch.linspace(0.1, 2, len(VOCABULARY)))


# What sentence-transformers itself cannot encode
UNREADABLE = {
    **dict.fromkeys(("processing without special tokens", "lstm"), lambda text: not text.strip()),
    "processing of all": lambda text: len(text.split()) > 30,
}


# Refused
REFUSED["cnn"] = (
    lambda folder: save(
        folder,
        transformer(folder),
        cnn := seeded(dense_modules.CNN(HIDDEN, 16), 0.2),
        dense_modules.Pooling(cnn.get_embedding_dimension()),
    ),
    "CNN.*depend on the other texts",
)


REFUSED["lstm behind a transformer"] = (  # it needs the lengths that only word embeddings give
    lambda folder: save(
        folder, transformer(folder), seeded(dense_modules.LSTM(HIDDEN, 8), 0.2), dense_modules.Pooling(16)
    ),
    "cannot encode with .*sentence_lengths",
)


@refused("euclidean", "euclidean.*cosine and dot")
def _(folder: Path) -> None:
    plain(folder, similarity_fn_name="euclidean")


def retyped(folder: Path, at: int, kind: str) -> None:
    plain(folder, dense_modules.Normalize())
    modules = json.loads((folder / "modules.json").read_text())
    modules[at]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))


for _kind in (
    "somebody_else.models.Pooling",
    "custom_pooling.Pooling",
    "sentence_transformers_extra.models.Pooling",
    "sentence_transformers.util.Pooling",
    "pylate.models.Dense.Dense",
    "os.path",
):
    REFUSED[f"module {_kind}"] = (
        lambda folder, kind=_kind: retyped(folder, 1, kind),
        rf"modules\.json names the module '{_kind}'",
    )


@refused("module of a router", r"router_config\.json names the module 'somebody_else\.Pooling'")
def _(folder: Path) -> None:
    routes(folder, side(folder, 1), side(folder, 2))
    content = json.loads((folder / "router_config.json").read_text())
    content["types"][content["structure"]["query"][1]] = "somebody_else.Pooling"
    (folder / "router_config.json").write_text(json.dumps(content))


@refused("adapter beside weights", r"adapter_config\.json.*merge")
def _(folder: Path) -> None:
    plain(folder)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))


@refused("adapter beside weights of a foreign pooling", r"adapter_config\.json.*merge")
def _(folder: Path) -> None:
    plain(folder, mode="weightedmean")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))


@refused("quantised weights", "quantization_config.*bitsandbytes")
def _(folder: Path) -> None:
    plain(folder)
    change(folder / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})


@refused("pickled weights", "pickled")
def _(folder: Path) -> None:
    plain(folder, mode="weightedmean")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@refused("activation of another package", "activation_function = 'somebody_else.Swish'")
def _(folder: Path) -> None:
    plain(folder, dense_modules.Dense(HIDDEN, 8))
    change(folder / "2_Dense" / "config.json", activation_function="somebody_else.Swish")


def retitled(folder: Path, kind: str) -> None:
    plain(folder)
    change(folder / "config_sentence_transformers.json", model_type=kind)


REFUSED["cross-encoder"] = (lambda folder: cross_encoder(folder), "is a CrossEncoder .*drkit rerank")
REFUSED["vectors of tokens"] = (
    lambda folder: retitled(folder, "MultiVectorEncoder"),
    "is a MultiVectorEncoder .*token",
)
REFUSED["another model"] = (lambda folder: retitled(folder, "ColBERT"), "is a ColBERT .*single vectors")
REFUSED["a prompt as long as the encoder reads"] = (
    lambda folder: with_prompts(folder, {"query": "file " * POSITIONS}),
    f"file file .* leaves no room for text in {POSITIONS}",
)
REFUSED["a long prompt of a foreign pooling"] = (
    lambda folder: plain(folder, mode="weightedmean", prompts={"document": "file " * POSITIONS}),
    f"file file .* leaves no room for text in the {POSITIONS} tokens",
)
REFUSED["a prompt as long as the processing of texts allows"] = (
    lambda folder: change(
        with_reading(folder, processing_kwargs={"text": {"max_length": 5}}) / "config_sentence_transformers.json",
        prompts={"query": "file number file ", "document": ""},
    ),
    "file number .* leaves no room for text in the 5 tokens",
)
REFUSED["a prompt as long as queries"] = (
    lambda folder: change(
        with_reading(folder, query_length=5) / "config_sentence_transformers.json",
        prompts={"query": "file number file ", "document": ""},
    ),
    "file number .* leaves no room for text in 5",
)
REFUSED["requirements that are not met"] = (
    lambda folder: change(
        plain(folder) / "config_sentence_transformers.json", requirements={"sentence_transformers": ">=99"}
    ),
    "requirements = .*'>=99'",
)
REFUSED["a setting that nobody knows"] = (
    lambda folder: with_reading(folder, window=7),
    "window",
)


@refused("a setting of pooling that nobody knows", "temperature")
def _(folder: Path) -> None:
    plain(folder)
    change(folder / "1_Pooling" / "config.json", temperature=2)


def cross_encoder(folder: Path) -> Path:
    """Save a `CrossEncoder` in the layout of version 6, with modules."""
    from sentence_transformers import CrossEncoder
    from transformers import BertForSequenceClassification

    bare = backbone(folder.with_name(f"{folder.name}-bare"))
    config = masked_lm().config
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(bare)
    CrossEncoder(str(bare), device="cpu").save_pretrained(str(folder))
    shutil.rmtree(bare)
    return folder
