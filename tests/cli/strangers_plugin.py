"""A stranger's plugin, as a package in a folder: a signal, a loss that compares rows, a decoder with its own output."""

SPECS = '''
from attrs import frozen
from attrs.validators import gt

from drkit.plugin import ComponentSpec, Kind, hookimpl, setting


@frozen
class FlagsConfig:
    """Settings of `Flags`."""

    weight: float = setting(1.0, gt(0), "value of a token that begins with a capital")


@frozen
class ApartConfig:
    """Settings of `Apart`; `partners` and `similarity` are settings of its own and mean nothing to drkit."""

    partners: int = setting(3, gt(0), "a setting")
    similarity: str = setting("strict", None, "a setting")


@frozen
class CapitalsConfig:
    """Settings of `Capitals`; `targets` is a number of its own, no share of positions."""

    targets: int = setting(16, gt(0), "width of its hidden layer")


@frozen
class CapitalsLossConfig:
    """Settings of `CapitalsLoss`: none."""


@hookimpl
def drkit_components():
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
            summary="Pushes the vectors of a batch apart, the more the fewer flags they share",
            receives=("bottleneck",),
            signals=("entity-flags",),
            scope="batch",
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="capitals",
            target="strangers.parts:Capitals",
            config=CapitalsConfig,
            summary="How many flags each text has, from its vector",
            signals=("entity-flags",),
            provides=("flag-counts",),
            trained_by="capitals-loss",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="capitals-loss",
            target="strangers.parts:CapitalsLoss",
            config=CapitalsLossConfig,
            summary="Squared error of the number of flags",
            receives=("flag-counts",),
            signals=("entity-flags",),
        ),
    ]
'''
