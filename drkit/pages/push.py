"""Upload a run's encoder and its model card to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from drkit.commands.inputs import export_checkpoint
from drkit.core.registry import Installed
from drkit.errors import DrkitError
from drkit.pages.model_card import write_model_card


def push_encoder(run: Path, repository: str, parts: Installed, *, private: bool = True) -> str:
    """Upload the encoder that a run exports, with its model card, as one commit; returns the commit's address.

    repository: `USER/NAME` on the hub, created if it does not exist. The hub's token is that of `hf auth login` or
    HF_TOKEN. Nothing but the encoder's folder is sent: no texts, queries or judgements.

    Raises DrkitError if the folder is not a run with an exported encoder, the name is invalid, or the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    with TemporaryDirectory(prefix="drkit-push-") as folder:
        encoder = export_checkpoint(run, Path(folder) / "encoder", registry=parts.registry)
        write_model_card(run, encoder, parts, repository)
        hub = HfApi()
        try:
            hub.create_repo(repository, private=private, exist_ok=True)
            done = hub.upload_folder(repo_id=repository, folder_path=encoder, commit_message="Encoder trained by drkit")
        except HFValidationError as error:
            raise DrkitError(f"invalid repository {repository!r}; give USER/NAME: {error}") from None
        except Exception as error:  # of the hub, or of its HTTP library, which differs between versions
            advice = "log in with `hf auth login`, and check the name, your rights and the network"
            raise DrkitError(f"cannot upload to {repository!r}: {error}; {advice}") from None
    return str(done.commit_url)
