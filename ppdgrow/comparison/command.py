"""What a user asks of `compare`: a comparison, or with `accept` a decision. One way in for command line and Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.decide import DecisionRequest, decide, evaluation_flags, refuse_without
from ppdgrow.comparison.evaluation import EvaluationOptions, with_test
from ppdgrow.comparison.output import OutputFiles
from ppdgrow.config.growth import JudgingRule
from ppdgrow.console import Narrator


@dataclass(frozen=True)
class CompareRequest:
    """The options of `compare`; None: not given.

    Attributes:
        paths: BASELINE and others, or with `accept` PARENT and TRIAL.
        accept: decide between two runs; `epsilon`, `twin`, `margin` and `rule` belong to this.
        test: evaluate every run on the test split too.
        files: pictures and pages, which the caller writes when it has shown the comparison.
        evaluation: where models are evaluated; belongs to `twin` and `test`.
    """

    paths: Sequence[Path]
    accept: bool = False
    epsilon: float | None = None
    twin: Path | None = None
    margin: float | None = None
    rule: JudgingRule | None = None
    test: bool = False
    files: OutputFiles = field(default_factory=OutputFiles)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)


def compare(request: CompareRequest, narrator: Narrator) -> Comparison:
    """Compare or decide, as asked.

    Raises:
        ConfigError: runs that are not comparable, or options that would do nothing.
        InvalidInputError: a path is no run, or its files are broken.
        StorageError: an output file could not be written.
    """
    if request.accept:
        request.files.refuse_with("--accept", test=request.test)
        decision = DecisionRequest(
            request.paths, request.epsilon, request.twin, request.rule, request.margin, request.evaluation
        )
        return decide(decision, narrator)
    refuse_without(
        "--accept",
        {"--epsilon": request.epsilon, "--twin": request.twin, "--margin": request.margin, "--rule": request.rule},
    )
    if not request.test:
        refuse_without("--test", evaluation_flags(request.evaluation))
    request.files.check()
    comparison = compare_runs(request.paths)
    return with_test(comparison, request.evaluation, narrator) if request.test else comparison
