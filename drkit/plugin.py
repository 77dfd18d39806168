"""Everything that a plugin needs to import.

A plugin is a package with an entry point in the group `drkit` and any of the hooks in `drkit.core.registry`:

    from drkit.plugin import ComponentSpec, Kind, hookimpl

    @hookimpl
    def drkit_components():
        return [ComponentSpec(Kind.MASKER, "my-masker", "my_package.masker:MyMasker", MyConfig, "What it does.")]
"""

from drkit.core.registry import hookimpl
from drkit.core.settings import setting
from drkit.core.spec import Citation, ComponentSpec, Kind
from drkit.core.types import BackboneInfo, BuildContext

__all__ = ["BackboneInfo", "BuildContext", "Citation", "ComponentSpec", "Kind", "hookimpl", "setting"]
