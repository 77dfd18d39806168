"""Arguments of transformers' Trainer in a recipe: which a training reads, and what to set instead of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs.validators import and_, ge, lt

from drkit.core.settings import more_than
from drkit.errors import did_you_mean

# Arguments of transformers' Trainer that runs rely on: where and when checkpoints are written, how training resumes,
# what is logged, and the schedule of batches.
_RELIED_ON = (
    "output_dir",
    "seed",
    "data_seed",
    "save_strategy",
    "save_only_model",
    "resume_from_checkpoint",
    "ignore_data_skip",
    "restore_callback_states_from_checkpoint",
    "load_best_model_at_end",
    "logging_strategy",
    "logging_nan_inf_filter",
    "eval_strategy",
    "eval_on_start",
    "auto_find_batch_size",
    "remove_unused_columns",
    "push_to_hub",
    "do_train",
    "do_eval",
    "do_predict",
    "ddp_broadcast_buffers",
)
# The other arguments that trainings use. Any further one would be ignored, or break a training: what reads batches,
# calls the model or computes the loss is drkit's own.
_USED = (
    *("optim", "optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_kwargs"),
    *("fp16", "tf32", "full_determinism", "use_cpu", "save_total_limit"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
    *("activation_checkpointing", "activation_checkpointing_kwargs"),
    *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory"),
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb"),
    *("logging_first_step", "log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"),
    *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
)
# What to do instead of setting one that is not used.
_INSTEAD = {
    "train_sampling_strategy": "the micro-batches of a step have texts of similar length already",
    "group_by_length": "the micro-batches of a step have texts of similar length already",
    "label_smoothing_factor": "the loss is a part: choose one that smooths its labels, or write one",
    "neftune_noise_alpha": "write a masker or a loss that adds noise",
    "use_liger_kernel": "drkit has a fused loss over the vocabulary already",
    "torch_empty_cache_steps": "set gradient_cache_chunk or arguments.gradient_checkpointing to save memory",
    "eval_steps": "set finetune.validation.every or pretrain.probe.every",
    "enable_jit_checkpoint": "set save_steps; Ctrl-C saves a checkpoint, too",
    "include_num_input_tokens_seen": "the log has tokens per second",
}


# Arguments that shard a training's weights over processes, which runs cannot save.
_SHARDING = ("fsdp", "fsdp_config", "parallelism_config", "deepspeed")
# Bounds of arguments that papers state; every other argument is tried before a run (`drkit.runs.prepare`).
OPTIMIZER = {"adam_beta1": and_(ge(0), lt(1)), "adam_beta2": and_(ge(0), lt(1)), "adam_epsilon": more_than(0, 1)}


def check_arguments(settings: Iterable[str], attribute: Any, value: dict[str, Any]) -> None:
    """Raise ValueError unless trainings read every argument. settings: those of a training, which stand elsewhere."""
    own = [name for name in value if name in {*settings} - {attribute.name}]
    if own:
        raise ValueError(f"'{own[0]}' has a setting of its own: move it out of `arguments`, into the table around it")
    taken = [name for name in value if name in _RELIED_ON]
    if taken:
        raise ValueError(f"'{taken[0]}' cannot be set in `arguments`: runs rely on the value that drkit gives it")
    sharding = [name for name in value if name in _SHARDING]
    if sharding:
        raise ValueError(
            f"'{sharding[0]}' is not supported: every process keeps a whole copy of the weights (torchrun). To save "
            f"memory, set gradient_cache_chunk, bf16 or arguments.gradient_checkpointing"
        )
    unused = [name for name in value if name not in _USED]
    if unused:
        instead = _INSTEAD.get(unused[0]) or "give one of transformers' TrainingArguments that a training reads"
        raise ValueError(
            f"'{unused[0]}' is not an argument that drkit's trainings use{did_you_mean(unused[0], _USED)} {instead}"
        )
    for name in OPTIMIZER.keys() & value.keys():
        if isinstance(value[name], bool) or not isinstance(value[name], (int, float)):
            raise ValueError(f"'{name}' must be a number, got {value[name]!r:.80}")
        OPTIMIZER[name](None, attribute.evolve(name=name), value[name])
