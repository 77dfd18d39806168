"""A folder of vectors: numbered shards of float32 or float16, their ids beside them, and what made them.

vectors.json     the encoder's identity, dtype, and, once all are there, the number of vectors
00000.npy        vectors of the first 16,384 texts (or 00000.safetensors, tensor `vectors`)
00000.arrow      their ids, column `doc_id`; in the metadata a hash of the texts
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, in_
from pyarrow import ArrowException

from drkit.core.files import write_text
from drkit.errors import DrkitError
from drkit.search.ids import DocIds
from drkit.search.shards import FORMATS, Shards

ABOUT = "vectors.json"


@frozen
class Storage:
    """How vectors are kept.

    role: `passages` or `queries`, which decides length and prompt. dtype: float32 or float16. format: npy or
    safetensors. shard_size: texts a shard; a kill loses the shard in work.
    """

    role: str = field(default="passages", validator=in_(("passages", "queries")))
    dtype: str = field(default="float32", validator=in_(("float32", "float16")))
    format: str = field(default="npy", validator=in_(FORMATS))
    shard_size: int = field(default=16_384, validator=ge(1))


@frozen(slots=False)
class Vectors:
    """A finished folder of vectors, opened; nothing of the vectors is in memory."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Vectors:
        """Raises DrkitError where there is none, it is unfinished, or files are missing, broken or do not fit."""
        place = Path(folder)
        about = read_about(place)
        if about is None:
            raise DrkitError(f"{place} is no folder of vectors: no {ABOUT}; `drkit encode` makes one")
        if about.get("count") is None:
            raise DrkitError(f"the vectors in {place} are unfinished; the same `drkit encode` again goes on")
        found = cls(place, about)
        wrong = (len(found.shards), len(found.doc_ids)) != (about["count"], about["count"])
        if wrong or found.shards.shape[1] != about["dimension"]:
            raise DrkitError(
                f"{place}: {len(found.doc_ids)} ids and vectors of shape {found.shards.shape} where {ABOUT} says "
                f"[{about['count']}, {about['dimension']}]; encode them again"
            )
        return found

    def __len__(self) -> int:
        return int(self.about["count"])

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.about["dimension"])

    @property
    def encoder(self) -> dict[str, Any]:
        """The identity of the encoder that made them."""
        return dict(self.about["encoder"])

    @cached_property
    def shards(self) -> Shards:
        """The vectors [N,D], read where they are sliced."""
        numbers = range(self.about["shards"])
        return Shards.read([vectors_file(self.folder, number, self.about["format"]) for number in numbers])

    @cached_property
    def doc_ids(self) -> DocIds:
        """Their ids; of queries, the queries' ids."""
        try:
            return DocIds.read([ids_file(self.folder, number) for number in range(self.about["shards"])])
        except (OSError, ArrowException) as error:
            raise DrkitError(f"cannot read the ids in {self.folder}: {error}; encode them again") from error


def vectors_file(folder: Path, number: int, format: str) -> Path:
    """The vectors of one shard."""
    return folder / f"{number:05d}.{format}"


def ids_file(folder: Path, number: int) -> Path:
    """The ids of one shard; written after its vectors, so that where it is, the shard is whole."""
    return folder / f"{number:05d}.arrow"


def read_about(folder: Path) -> dict[str, Any] | None:
    """What vectors.json says; None where there is none. Raises DrkitError where it is broken."""
    path = folder / ABOUT
    if not path.is_file():
        return None
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {**about, "encoder": dict(about["encoder"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DrkitError(f"cannot read {path}: {error}; remove the folder and encode again") from error


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write vectors.json, atomically."""
    write_text(folder / ABOUT, json.dumps(about, indent=2, ensure_ascii=False) + "\n")
