"""What all models of recipes, architectures and checkpoints are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=2**40)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**40)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
FORMAT = 1
FormatNumber = Annotated[int, Field(ge=FORMAT, le=FORMAT)]  # Literal[1] would take true and 1.0 too


class Frozen(BaseModel):
    """Strict and frozen: `"6"` is not a number, NaN is not a rate, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def key(default: Any, meaning: str, **bounds: Any) -> Any:
    """A key of a recipe: its default, what the list of keys says of it, and what pydantic is to hold it to."""
    return Field(default, description=meaning, **bounds)
