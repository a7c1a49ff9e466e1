"""What a checkpoint knows of its own training: `trainer_state.json`, and the figures that reports use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ppdgrow.config.base import FORMAT, FormatNumber, Fraction, Frozen

Count = Annotated[int, Field(ge=0, le=2**62)]
Flops = Annotated[int, Field(ge=0, le=10**40)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Validation(Frozen):
    """Figures on the fixed validation batches; None where they have no meaning."""

    loss: float  # nats per token, or per image for `classify`
    accuracy: float  # a fraction
    perplexity: float | None = None
    bits_per_byte: float | None = None
    class_accuracy: dict[str, float] | None = None  # by the name of the class


class Cost(Frozen):
    """Training tokens, FLOPs (forward and backward), and seconds of training steps."""

    tokens: Count = 0
    flops: Flops = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0


class Ledger(Cost):
    """What the model cost so far, its ancestors included."""

    trials: Cost = Cost()  # spent beside it on deciding: rejected growths, and twins of accepted ones

    def since(self, earlier: Ledger) -> Cost:
        """What was spent from `earlier` to here on the model itself."""
        return Cost(
            tokens=self.tokens - earlier.tokens,
            flops=self.flops - earlier.flops,
            seconds=max(0.0, self.seconds - earlier.seconds),
        )

    def charged(self, cost: Cost) -> Ledger:
        """The same with a trial's cost added to `trials`."""
        spent = {name: value + getattr(cost, name) for name, value in self.trials}
        return self.model_copy(update={"trials": Cost(**spent)})


class DataIdentity(Frozen):
    """Which examples the figures speak of: two runs are comparable only if these are equal."""

    name: str
    tokenizer: str | None
    sequence_length: Count | None
    sha256: dict[str, str]  # by split that was read, of the raw content before tokenisation
    validation_examples: Count  # fixed validation sequences or images


class Environment(Frozen):
    """What decides the last bits of a run beside its recipe."""

    torch: str
    device: str
    threads: Count
    cpu_capability: str
    precision: Literal["fp32", "bf16"]
    deterministic: bool = False
    accumulate: Count = 1


class TrainerState(Frozen):
    """`trainer_state.json`."""

    format: FormatNumber = FORMAT
    step: Count
    lr_factor: Fraction  # the schedule's value at the last step; 1.0: not decayed
    ledger: Ledger
    validation: Validation | None
    train_loss: float | None
    data: DataIdentity
    environment: Environment
