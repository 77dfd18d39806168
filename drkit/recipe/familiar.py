"""Settings of a recipe by the names that other tools give them: TrainingArguments, sentence-transformers, Tevatron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# The setting of each name, which is written with underscores.
_SETTINGS = {
    "learning_rate": ("lr", "base_lr", "peak_lr", "init_lr"),
    "num_train_epochs": ("epoch", "epochs", "num_epochs", "n_epochs", "max_epochs", "train_epochs"),
    "batch_size": ("train_batch_size", "global_batch_size", "total_batch_size", "effective_batch_size"),
    "per_device_train_batch_size": ("per_device_batch_size", "per_gpu_batch_size", "micro_batch_size"),
    "max_steps": ("steps", "num_steps", "train_steps", "max_train_steps", "num_train_steps", "total_steps"),
    "warmup_steps": ("warmup", "warmup_ratio", "num_warmup_steps", "warmup_proportion"),
    "gradient_accumulation_steps": ("accumulation_steps", "gradient_accumulation", "grad_accum", "accumulate"),
    "gradient_cache_chunk": ("mini_batch_size", "gc_chunk_size", "grad_cache", "chunk_size", "gradient_checkpointing"),
    "lr_scheduler_type": ("scheduler", "lr_scheduler", "lr_schedule"),
    "max_grad_norm": ("grad_clip", "gradient_clipping", "clip_grad_norm"),
    "bf16": ("fp16", "half", "mixed_precision", "use_amp"),
    "temperature": ("temp", "tau", "loss_temperature"),
    "negatives": ("num_negatives", "n_negatives", "num_hard_negatives", "hard_negatives", "train_group_size"),
    "passage_length": ("max_length", "max_seq_length", "max_seq_len", "max_len", "model_max_length", "p_max_len"),
    "query_length": ("q_max_len", "query_max_len", "query_max_length", "max_query_length"),
    "pretrained": ("model", "model_name", "model_name_or_path", "base_model", "backbone", "checkpoint"),
    "layers": ("num_layers", "n_layers", "num_hidden_layers"),
    "hidden": ("hidden_size", "d_model", "hidden_dim"),
    "heads": ("num_heads", "num_attention_heads"),
    "ratio": ("mask_ratio", "masking_ratio", "mlm_probability", "mask_prob", "mlm_ratio"),
    "measures": ("metric", "metrics", "measure"),
    "depth": ("top_k", "topk", "k"),
    "seed": ("random_seed", "random_state"),
    "limit": ("max_samples", "max_train_samples", "num_samples"),
}
# The table of each name that a path may begin with.
_TABLES = {
    "finetune": ("train", "training", "fine_tune", "finetuning", "fine_tuning", "trainer", "args"),
    "pretrain": ("pretraining", "pre_train", "pre_training"),
    "encoder": ("model", "retriever"),
    "collection": ("data", "dataset", "corpus"),
    "evaluation": ("eval", "evaluate"),
    "reranker": ("cross_encoder", "rerank"),
}
_SETTING = {other: name for name, others in _SETTINGS.items() for other in others}
_TABLE = {other: name for name, others in _TABLES.items() for other in others}
# Most people mean those of fine-tuning; a round's own settings come last.
_ORDER = ("finetune", "pretrain", "encoder", "collection", "evaluation")
_SHOWN = 3


def own_setting(name: str) -> str:
    """Return drkit's name of a setting that other tools call `name`, or the name itself, with underscores.

    >>> own_setting("lr"), own_setting("batch-size"), own_setting("window")
    ('learning_rate', 'batch_size', 'window')
    """
    text = name.lower().replace("-", "_")
    return _SETTING.get(text, text)


def meant_settings(path: str, known: Iterable[str]) -> Sequence[str]:
    """Return the dotted paths, of those that are known, that a wrong path may mean: at most three, or none.

    >>> meant_settings("lr", ["finetune.learning_rate", "pretrain.learning_rate", "finetune.rounds.0.learning_rate"])
    ['finetune.learning_rate', 'pretrain.learning_rate']
    >>> meant_settings("training.lr", ["pretrain.learning_rate", "finetune.learning_rate"])
    ['finetune.learning_rate']
    """
    *given, last = path.split(".")
    tables, name = {_TABLE.get(key, key) for key in given}, own_setting(last)
    found = [one.split(".") for one in known]
    found = [keys for keys in found if keys[-1] == name and tables <= {*keys}]
    alone = [keys for keys in found if "rounds" not in keys] or found
    alone.sort(key=lambda keys: (_ORDER.index(keys[0]) if keys[0] in _ORDER else len(_ORDER), len(keys)))
    return [".".join(keys) for keys in alone[:_SHOWN]]
