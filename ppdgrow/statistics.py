"""Means with intervals: of paired differences over seeds, and Student's t that both rules and comparisons use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist, fmean, stdev
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """One figure of several runs, such as one per seed.

    The interval is Student's, at 95 %: it holds for independent values of a normal distribution. One value has
    neither deviation nor interval. Mean and interval of a `ratio` (above 0) are taken on its logarithm.
    """

    values: tuple[float, ...]
    ratio: bool = False

    @property
    def number(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        """Their mean; of ratios the geometric one."""
        return self._back(self._centre)

    @cached_property
    def _linear(self) -> tuple[float, ...]:
        return tuple(map(math.log, self.values)) if self.ratio else self.values

    @cached_property
    def _centre(self) -> float:
        return fmean(self._linear)

    def _back(self, value: float) -> float:
        return math.exp(value) if self.ratio else value

    @cached_property
    def deviation(self) -> float | None:
        """Their standard deviation, with n - 1 in the denominator."""
        return stdev(self.values) if self.number > 1 else None

    @cached_property
    def _half(self) -> float | None:
        if self.number < 2:
            return None
        quantile = student_quantile(0.5 + CONFIDENCE / 2, self.number - 1)
        return quantile * stdev(self._linear) / math.sqrt(self.number)

    @property
    def low(self) -> float | None:
        return None if self._half is None else self._back(self._centre - self._half)

    @property
    def high(self) -> float | None:
        return None if self._half is None else self._back(self._centre + self._half)

    def document(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "sd": self.deviation,
            "low": self.low,
            "high": self.high,
            "values": list(self.values),
        }


def estimate(values: Sequence[float | None], *, ratio: bool = False) -> Estimate | None:
    """The estimate of these values; None where there is none, or one is missing, or not above 0 in a `ratio`."""
    known = [value for value in values if value is not None and (value > 0 or not ratio)]
    return Estimate(tuple(known), ratio) if known and len(known) == len(values) else None


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, within 0.2 % from 3 up.

    Source: Abramowitz & Stegun 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        centred = 2 * probability - 1
        return centred * math.sqrt(2 / (1 - centred**2))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
