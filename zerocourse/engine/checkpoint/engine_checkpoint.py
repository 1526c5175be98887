"""DeepSpeed's `save_checkpoint` and `load_checkpoint`: checkpoints by tag, with all that the engine knows."""

import warnings
from pathlib import Path

from ...errors import BadInput
from .folders import checkpoint_folder as folders
from .loading import load_checkpoint
from .saving import finish_earlier, save_checkpoint


class EngineCheckpoints:
    """What an engine has of checkpoints. Its attributes are the engine's."""

    _window: int

    def save_checkpoint(self, save_dir: str | Path, tag: str | None = None, client_state: dict | None = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False, *,
                        asynchronous: bool = False) -> bool:
        """Save everything as the folder `save_dir/tag`, and note the tag in `save_dir/latest`. Collective. Returns
        True.

        What is saved: all that `zerocourse.save_checkpoint` saves, the scheduler, the number of steps, the position in
        the training data that `initialize` was given, and `client_state` as rank 0 has it.
        exclude_frozen_parameters: leave out what does not require gradients, as of a base model under LoRA. Load such a
        checkpoint with `load_module_strict=False` into a model that has those values.
        save_dir: one folder, which all ranks see; where they name several, rank 0's counts, with a warning.
        tag: `global_stepN` by default.   asynchronous: write in the background. `latest` then follows when the
        checkpoint is whole, which the next save or load, or `engine.wait_for_checkpoint()`, waits for.
        Between the micro-batches of a window the weights of the last update are saved, and not the gradients so far, as in
        DeepSpeed: who loads the checkpoint begins the window anew, with the samples that follow. Raises BadInput.
        """
        if not isinstance(save_dir, str | Path) or not str(save_dir):
            raise BadInput(f"save_checkpoint got {save_dir!r} for a folder: name the one that checkpoints are to be in")
        if (self._window or self.n_backwards) and self.zero.offload is not None and self.zero.offload.delays:
            raise BadInput("save_checkpoint was called within a window under a delayed update (delay_after), which a save applies: save "
                           "after the engine.step() that updates")
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        tags, folders_given = zip(*self.zero.groups.all_gather_object([tag, str(Path(save_dir).absolute())]), strict=True)
        if len(set(folders_given)) > 1:  # as of a script in which each rank makes a temporary folder
            warnings.warn(f"the ranks gave save_checkpoint different folders, and all write into rank 0's, {folders_given[0]}", stacklevel=2)
            save_dir = folders_given[0]
        validation = self.config.checkpoint.tag_validation
        if len(set(tags)) > 1 and validation != "Fail":
            tag = tags[0]
            if validation == "Warn":
                warnings.warn(f"the ranks gave save_checkpoint different tags, and rank 0's counts: {', '.join(map(repr, tags))}", stacklevel=2)
            tags = [tag]
        if len(set(tags)) > 1 or Path(tag).name != tag:
            raise BadInput(f"the tag of a checkpoint is {' and '.join(map(repr, sorted(set(tags))))}: it must be one "
                           "folder's name, the same on every rank")
        self.wait_for_checkpoint()
        counts = {name: getattr(self, name) for name in COUNTS}
        if self._window:
            counts["micro_steps"] -= self._window  # who loads it begins this window anew
            warnings.warn(f"save_checkpoint was called within a window: the gradients of its {self._window} micro-batches so far are not in "
                          "the checkpoint, and who loads it begins the window anew: save after an update", stacklevel=2)
        state = {"engine": counts, "client": client_state or {}}
        state |= {name: part.state_dict() for name, part in self._parts().items()}
        self._saving = save_checkpoint(self.module, self.optimizer, Path(save_dir, tag), state, asynchronous, leaves_gradients=True,
                                       exclude_frozen=exclude_frozen_parameters)
        self._to_note = Path(save_dir) if save_latest else None
        if not asynchronous:
            self.wait_for_checkpoint()
        return True

    def wait_for_checkpoint(self) -> None:
        """What is written in the background is whole when this returns. Collective. Raises CheckpointError."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        finish_earlier(self.zero)
        saving.wait()
        if self._to_note is not None:
            if self.global_rank == 0:
                folders.set_latest(self._to_note, saving.path.name)
            self.zero.groups.all_gather_object("noted")

    def load_checkpoint(self, load_dir: str | Path, tag: str | None = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False) -> tuple[str | None, dict | None]:
        """Continue from `load_dir/tag`, by default the one that `load_dir/latest` names. Collective.

        load_module_strict: False leaves parameters and buffers that the checkpoint lacks as they are, and passes over what the
        model has not, with a warning that names them.
        Returns (path, client_state), or (None, None) with a warning when there is no `latest`. The number of ranks, the
        stage and the precision may be others than at saving; random states are restored if the number of ranks is the
        same.
        """
        self.wait_for_checkpoint()
        tag = folders.latest(Path(load_dir)) if tag is None else str(tag)
        if tag is None:
            warnings.warn(f"there is no file {Path(load_dir, folders.LATEST)}, so nothing was loaded: give load_checkpoint "
                          "a tag", stacklevel=2)
            return None, None
        path = Path(load_dir, tag)
        alone = load_module_only or not load_optimizer_states
        state = load_checkpoint(self.module, None if alone else self.optimizer, path, random=not load_module_only,
                                strict=load_module_strict)
        if not isinstance(state, dict) or "engine" not in state:
            raise BadInput(f"{path} was saved by zerocourse.save_checkpoint, without an engine: load it with "
                           "zerocourse.load_checkpoint")
        self._forget_window()
        if not load_module_only:
            for name in COUNTS:
                setattr(self, name, state["engine"][name])
            for name, part in self._parts().items():
                if name in state and (load_lr_scheduler_states or name != "scheduler"):
                    part.load_state_dict(state[name])
            self.show_scale(overflow=False)
        return str(path), state["client"]

    def _parts(self) -> dict[str, object]:
        """What else has a state: by name, those that are there."""
        parts = {"scheduler": self.lr_scheduler, "sampler": self._sampler, "scaler": getattr(self, "loss_scaler", None)}
        return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}


COUNTS = ("global_steps", "micro_steps", "skipped_steps")  # of the engine
