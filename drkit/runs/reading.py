"""How a run's encoders read texts: what a checkpoint folder does not declare itself. No torch here: plans read it."""

from __future__ import annotations

from attrs import frozen

from drkit.runs.stage import from_recipe


@frozen
class TextReading:
    """Pooling, similarity, lengths (tokens, special ones included) and prompts, as the recipe has them."""

    pooling: str = from_recipe("encoder.pooling")
    similarity: str = from_recipe("similarity")
    query_length: int = from_recipe("encoder.query_length")
    passage_length: int = from_recipe("encoder.passage_length")
    query_prompt: str = from_recipe("encoder.query_prompt")
    passage_prompt: str = from_recipe("encoder.passage_prompt")
