"""The training itself, on transformers' Trainer; imported when something is healed, for it takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from headlens.errors import HealingError
from headlens.healing.folder import says_damaged, says_unwritable
from headlens.healing.losses import Losses, States, states_of
from headlens.healing.reading import Batches
from headlens.healing.recipe import Recipe
from headlens.importance.inputs import TextBatch

BETAS = (0.9, 0.98)
WARM_UP = 0.1  # of all steps
CLIP = 1.0  # norm of all gradients together

_NOT_TOLD = ("epoch", "total_flos", "train_loss")


def train(
    network: PreTrainedModel,
    teacher: PreTrainedModel,
    losses: Losses,
    batches: Batches,
    recipe: Recipe,
    *,
    folder: Path | None,
    checkpoint: Path | None,
    progress: Callable[[int], None],
    begin: Callable[[int], None] = lambda _step: None,
) -> tuple[dict[str, float], ...]:
    """Change those weights of `network` that want gradients; returns what was logged at every step.

    The teacher is in eval mode. No file is left where there is no folder. `begin` is told the number of every step,
    from 1 on, before it is taken; `progress` afterwards.

    Raises
    ------
    HealingError
        The loss is no number any more.
    OutputError
        Checkpoints cannot be written or read.
    """
    with TemporaryDirectory() as empty:
        args = _arguments(recipe, str(folder or empty), folder is not None, network.device)
        trainer = _Healer(_Healing(network), teacher, losses, batches, args, recipe.bf16, _Progress(begin, progress))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return tuple(
        {name: value for name, value in entry.items() if name not in _NOT_TOLD}
        for entry in trainer.state.log_history
        if "loss" in entry
    )


class _Healing(nn.Module):
    """The network as the Trainer sees it, which trains no model without a head; only what is trained is saved.

    It never drops anything out: the original's hidden states are the aim, and dropout would move away from them.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: TextBatch) -> States:
        return states_of(self.network, batch)

    def train(self, mode: bool = True) -> _Healing:
        return super().train(False)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {name: weight.detach() for name, weight in self._trained()}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        trained = dict(self._trained())
        if {name: weight.shape for name, weight in trained.items()} != {n: w.shape for n, w in state_dict.items()}:
            raise ValueError("its weights are those of another model")
        with torch.no_grad():
            for name, weight in trained.items():
                weight.copy_(state_dict[name])
        return _IncompatibleKeys([], [])

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, weight) for name, weight in self.named_parameters() if weight.requires_grad)


class _Healer(Trainer):
    def __init__(
        self,
        model: _Healing,
        teacher: PreTrainedModel,
        losses: Losses,
        batches: Batches,
        args: TrainingArguments,
        bf16: bool,
        progress: TrainerCallback,
    ) -> None:
        super().__init__(model, args, train_dataset=batches, callbacks=[progress])
        self.remove_callback(PrinterCallback)
        self.teacher, self.losses, self.batches, self.bf16 = teacher, losses, batches, bf16
        self.last_parts: dict[str, float] = {}

    def get_train_dataloader(self) -> DataLoader[int]:
        """In the order of the data, which is drawn already: so a training that goes on goes on with the next text."""
        return DataLoader(self.batches, self.args.per_device_train_batch_size, collate_fn=self.batches.collated)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        batch = TextBatch(inputs["input_ids"], inputs["attention_mask"], inputs["row"])
        device = batch.input_ids.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            with torch.no_grad():
                wanted = states_of(self.teacher, batch.to(self.teacher.device)).to(device)
            parts = self.losses.parts(model(batch), wanted, batch)
            loss = self.losses.total(parts)
        if not torch.isfinite(loss):
            step = self.state.global_step + 1
            if step == 1:
                raise HealingError(
                    "The loss is no number before anything was trained: look for NaN in the weights of the pruned "
                    "model and of its original."
                )
            raise HealingError(
                f"The loss is no number any more at step {step} of {self.state.max_steps}: take a smaller learning "
                f"rate than {self.args.learning_rate:g}."
            )
        self.last_parts = {name: float(part.detach()) for name, part in parts.items()}
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs | self.last_parts if "loss" in logs else logs, *args, **kwargs)

    # What follows is not public in transformers: the places where it writes and reads, so that errors can say so.

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with says_unwritable(self.args.output_dir):
            super()._save_checkpoint(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with says_damaged(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with says_damaged(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with says_damaged(checkpoint):
            super()._load_rng_state(checkpoint)


class _Progress(TrainerCallback):
    def __init__(self, begin: Callable[[int], None], progress: Callable[[int], None]) -> None:
        self.begin, self.progress = begin, progress

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress(state.global_step)


def _arguments(recipe: Recipe, folder: str, is_kept: bool, device: torch.device) -> TrainingArguments:
    args = TrainingArguments(
        output_dir=folder,
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.lr,
        optim="adamw_torch",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,  # the weights are near where they should be, and that is not at zero
        max_grad_norm=CLIP,
        lr_scheduler_type="cosine",
        warmup_steps=round(WARM_UP * recipe.steps),
        seed=recipe.seed,
        save_strategy="steps" if is_kept else "no",
        save_steps=recipe.save_every,
        save_total_limit=1,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
    )
    if args.n_gpu > 1:
        args._n_gpu = 1  # the Trainer would spread batches over all of them, and the teacher is on one
    return args
