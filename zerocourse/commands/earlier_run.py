"""What stands in the folder of the checkpoints already: nothing, this run's own after a restart, or another run's."""

from pathlib import Path

from ..comm import bootstrap
from ..engine.checkpoint.folders import checkpoint_folder as folders
from ..engine.checkpoint.source import Source
from ..errors import BadInput


def of_earlier_attempt(args) -> dict | None:
    """What the latest checkpoint says of itself, if an earlier attempt of this very run under torchrun has left it."""
    tag, run = folders.latest(args.checkpoints), bootstrap.run_id()
    # "none" is torchrun's name of a run without one. Two of these are told apart by nothing.
    if tag is None or not run or (run == "none" and not bootstrap.max_restarts()):
        return None
    client = client_of(args.checkpoints / tag)
    return client if client.get("run") == run else None


def client_of(path: Path) -> dict:
    """What `train` saved beside the model and the optimizer; {} if that checkpoint is somebody else's."""
    extra = Source(folders.must_read(path)).object("extra")
    client = extra.get("client", {}) if isinstance(extra, dict) else {}
    return client | {"step": extra["engine"]["global_steps"]} if "rows" in client and "stream" in client else {}


def check_resume(args, stream) -> None:
    """Raise BadInput for a checkpoint that is missing with --resume, or in the way without it, or does not fit."""
    tag = folders.latest(args.checkpoints)
    if not args.resume:
        if tag is not None:
            raise BadInput(f"--checkpoints is {args.checkpoints}, which has {tag} of an earlier run: continue it with "
                           "--resume, or name another folder")
        return
    if tag is None:
        raise BadInput(f"--resume has nothing to continue: there is no checkpoint in {args.checkpoints} (--checkpoints)")
    client = client_of(args.checkpoints / tag)
    if not client:
        raise BadInput(f"{args.checkpoints / tag} is not of zerocourse train, so --resume does not know where it stands "
                       "in the data: continue it with engine.load_checkpoint")
    if client["step"] >= args.steps:
        raise BadInput(f"--steps is {args.steps}, and {args.checkpoints / tag} has made them already: steps count from "
                       "the very beginning, so ask for more")
    stream.load_state_dict(client["stream"])  # raises for another text or seed
