"""A stranger's plugin: a signal, a loss that compares rows, and a decoder with an output and a loss of its own."""

from attrs import frozen
from attrs.validators import gt

from drkit.plugin import ComponentSpec, Kind, hookimpl, setting


@frozen
class FlagsConfig:
    """The value that `Flags` gives to capitals."""

    weight: float = setting(1.0, gt(0), "value of a token of a word that begins with a capital")


@frozen
class ApartConfig:
    """Settings of `Apart`; these names mean something else in drkit's own settings, and nothing to drkit here."""

    partners: int = setting(3, gt(0), "how fast the push between two vectors fades")
    similarity: str = setting("strict", None, "a word")
    needs: str = setting("much", None, "a word")


@frozen
class CapitalsConfig:
    """Settings of `Capitals`; `targets` is a width here, not a share of positions."""

    targets: int = setting(16, gt(0), "width of its hidden layer")
    signals: int = setting(1, gt(0), "a number")


@frozen
class CountLossConfig:
    """Settings of `CountLoss`: none."""


@hookimpl
def drkit_components():
    """The four parts."""
    return [
        ComponentSpec(
            kind=Kind.SIGNAL,
            name="entity-flags",
            target="strangers.parts:Flags",
            config=FlagsConfig,
            summary="Tokens of words that begin with a capital",
            requires=("characters",),
            scope="token",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="apart",
            target="strangers.parts:Apart",
            config=ApartConfig,
            summary="Pushes vectors apart whose texts have unlike numbers of flags",
            receives=("bottleneck",),
            signals=("entity-flags",),
            scope="batch",
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="capitals",
            target="strangers.parts:Capitals",
            config=CapitalsConfig,
            summary="Tells from the vector how many flags a text has",
            signals=("entity-flags",),
            provides=("flag_counts",),
            trained_by="flag-count",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="flag-count",
            target="strangers.parts:CountLoss",
            config=CountLossConfig,
            summary="Squared error of a text's number of flags",
            receives=("flag_counts",),
            signals=("entity-flags",),
        ),
    ]
