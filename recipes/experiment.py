"""The first experiment: does untying a cancelling pair help?

Trains every arm with every seed of a size, some at a time, and ends with a report beside the folder of the runs. 6
layers are trained for a while, grown to 12 in several ways and trained on, against models that have 6 or 12 layers from
the start. Arms that start from the same shallow model share it; its cost counts for each of them.

Run:   python recipes/experiment.py wikitext2-cpu        (where ppdgrow is installed, with its extra `plot`;
                                                         PPDGROW_DATA=FOLDER with wikitext-2/ and cifar10/, else a
                                                         download; --help lists sizes, sets of arms and options)
Takes: a run of a cpu size less than 20 minutes on one core of an Intel Xeon, all of them hours
Again: what is done is skipped, and what was stopped goes on: after a kill, give the same line again. A run that failed
       is tried once more, and left out of the report if it fails again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

# As short as can be: the commands are recorded with the runs.
RECIPES = Path(os.path.relpath(Path(__file__).parent))


@dataclass(frozen=True)
class Size:
    """A recipe `recipes/SIZE.yaml` with what its arms need to know.

    `at` is the step of the growth; a model of 12 layers costs as much in `equal_steps` steps as one that is grown
    by attention pairs in all `steps`; `wider` makes a model of twice the width.
    """

    steps: int
    at: int
    equal_steps: int
    wider: str


SIZES = {
    "wikitext2-cpu": Size(steps=1500, at=400, equal_steps=1308, wider="--width 256 -o model.heads=8"),
    "wikitext2-gpu": Size(steps=10_000, at=2700, equal_steps=8866, wider="--width 1024 -o model.heads=16"),
    "wikitext2-front": Size(steps=4000, at=2000, equal_steps=4000, wider=""),
    "cifar10-cpu": Size(steps=1500, at=400, equal_steps=1308, wider="--width 256 -o model.heads=8"),
    "cifar10-gpu": Size(steps=30_000, at=8100, equal_steps=25_963, wider="--width 768 -o model.heads=12"),
}


@dataclass(frozen=True)
class Arm:
    """How the model of one arm comes about.

    Args:
        train: options of the `ppdgrow train` that ends with the last step.
        shallow: layers of the model that it starts from; None: from scratch.
        grow: options of `ppdgrow grow` between the two; None: not grown.
        at: share of the budget at which the shallow phase ends; None: `Size.at`.
        equal_steps: train for `Size.equal_steps`.
        budget: TFLOP of training; instead of the steps of the size, as many as these pay.
        growth: growths within the run, each the share of its steps at which it happens, and a growth entry's keys.
    """

    train: str = ""
    shallow: int | None = None
    grow: str | None = None
    at: float | None = None
    equal_steps: bool = False
    budget: float | None = None
    growth: tuple[tuple[float, str], ...] = ()

    def at_steps(self, steps: int) -> str:
        """The options of its `ppdgrow train` for so many steps."""
        entries = ", ".join(
            f"{{at: {round(share * steps)}, {keys}, trial: {{rule: always, steps: 1}}}}" for share, keys in self.growth
        )
        return f"{self.train} -o 'growth=[{entries}]'" if entries else self.train


def _grown(grow: str, *, at: float | None = None, train: str = "") -> Arm:
    return Arm(train, shallow=6, grow=f"--pairs 3 {grow}", at=at)


EQUAL = "scratch-12-equal-flops"
ARMS = {
    "scratch-12": Arm("--layers 12"),
    "scratch-12-residual": Arm("--layers 12 -o model.stream=residual"),
    "scratch-12-wide": Arm("--layers 12 {wider}"),
    EQUAL: Arm("--layers 12", equal_steps=True),
    "scratch-6": Arm(shallow=6),
    "reset-6": Arm("-o train.reset_optimizer=true", shallow=6),
    "attention": _grown("--pair attention"),
    "attention-first": _grown("--pair attention-first"),
    "ffn": _grown("--pair ffn"),
    "zero": _grown("--method zero"),
    "copy": _grown("--method copy --position end"),
    "fresh": _grown("--method fresh"),
    # One factor of the growth at a time, against `attention`.
    "at-10": _grown("--pair attention", at=0.1),
    "at-50": _grown("--pair attention", at=0.5),
    "at-80": _grown("--pair attention", at=0.8),
    "moments-fresh": _grown("--pair attention --moments fresh"),
    "moments-copy": _grown("--pair attention --moments copy"),
    "rate-0.5": _grown("--pair attention", train="--pair-lr 0.5"),
    "rate-2": _grown("--pair attention", train="--pair-lr 2"),
    "scale-0.3": _grown("--pair attention --scale 0.3"),
    "scale-0.1": _grown("--pair attention --scale 0.1"),
    "source-random": _grown("--pair attention --source random"),
    "many-late": Arm(shallow=2, grow="--pair attention --pairs 5", at=0.8),
    # The learning rate of the baseline.
    "lr-1e-3": Arm("--layers 12 -o train.lr=1e-3"),
    "lr-2e-3": Arm("--layers 12 -o train.lr=2e-3"),
    "lr-4e-3": Arm("--layers 12 -o train.lr=4e-3"),
    "lr-8e-3": Arm("--layers 12 -o train.lr=8e-3"),
}


# The second experiment: TFLOP of the budgets of `wikitext2-front`; 6.85 are 4,000 steps of 6 layers.
SMALL, MEDIUM, LARGE = 3.42, 6.85, 12.9
DEPTHS = (2, 3, 4, 6, 8, 12)
COPIES = {
    "attention": "pair: attention",
    "attention-first": "pair: attention-first",
    "scale-0.3": "pair: attention, scale: 0.3",
    "scale-0.1": "pair: attention, scale: 0.1",
    "moments-fresh": "pair: attention, moments: fresh",
    "moments-copy": "pair: attention, moments: copy",
    "zero": "method: zero",
    "copy": "method: copy",
    "fresh": "method: fresh",
    "random": "pair: attention, source: random",
}


def _scratch(layers: int, budget: float, lr: float | None = None) -> str:
    """Enter an arm that has all its layers from the start; returns its name."""
    name = f"{layers}-layers-{budget:g}T" + ("" if lr is None else f"-lr-{lr:g}")
    rate = "" if lr is None else f" -o train.lr={lr:g}"
    ARMS[name] = Arm(f"--layers {layers}{rate}", budget=budget)
    return name


def _in_run(
    start: int, stages: Sequence[tuple[float, int]], budget: float, operator: str = "attention", lr: float | None = None
) -> str:
    """Enter an arm that grows within its run, by stages of a share of the steps and a depth; returns its name."""
    depths = [start, *(depth for _, depth in stages)]
    growth = tuple(
        (share, f"{COPIES[operator]}, pairs: {(after - before) // 2}")
        for (share, after), before in zip(stages, depths, strict=False)
    )
    at = "-".join(f"{share:.0%}".removesuffix("%") for share, _ in stages)
    name = f"{'-'.join(map(str, depths))}-at-{at}-{operator}-{budget:g}T" + ("" if lr is None else f"-lr-{lr:g}")
    rate = "" if lr is None else f" -o train.lr={lr:g}"
    ARMS[name] = Arm(f"--layers {start}{rate}", budget=budget, growth=growth)
    return name


RATES = {depth: (4e-3, 6e-3, 8e-3) if depth <= 4 else (3e-3, 4e-3, 6e-3) for depth in DEPTHS}
RATE_ARMS = [_scratch(depth, SMALL, lr) for depth in DEPTHS for lr in RATES[depth]]
SCHEDULE_ARMS = [
    _scratch(3, SMALL),
    *(_in_run(2, [(0.5, depth)], SMALL) for depth in (6, 8, 4, 12)),
    *(_in_run(2, [(share, depth)], SMALL) for depth in (6, 8) for share in (0.7, 0.3)),
    *(_in_run(1, [(share, depth)], SMALL) for share, depth in ((0.5, 5), (0.3, 5), (0.5, 3), (0.5, 7))),
    *(_in_run(3, [(0.5, depth)], SMALL) for depth in (5, 7)),
    _in_run(2, [(0.3, 4), (0.6, 6)], SMALL),
    _in_run(2, [(0.4, 4), (0.7, 8)], SMALL),
    _in_run(1, [(0.2, 3), (0.5, 5)], SMALL),
    _in_run(2, [(0.25, 4), (0.5, 6), (0.75, 8)], SMALL),
]


@dataclass(frozen=True)
class ArmSet:
    """Arms that answer one question, the first of them the baseline, and their seeds.

    Only a set that is reported, and chooses nothing, is evaluated on the test split.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    test: bool = False


# What is tuned is tuned on another seed than the headline's.
SETS = {
    "headline": ArmSet(
        (
            *("scratch-12", "attention", "scratch-6", "zero", "attention-first", "ffn", "copy", "scratch-12-residual"),
            *("fresh", EQUAL, "reset-6", "scratch-12-wide"),
        ),
        seeds=(0, 1, 2),
        test=True,
    ),
    "defaults": ArmSet(
        (
            *("attention", "at-10", "at-50", "at-80", "moments-fresh", "moments-copy", "rate-0.5", "rate-2"),
            *("scale-0.3", "scale-0.1", "source-random", "many-late"),
        ),
        seeds=(100,),
    ),
    "rates": ArmSet(("lr-2e-3", "lr-1e-3", "lr-4e-3", "lr-8e-3"), seeds=(100,)),
    "front-rates": ArmSet(tuple(RATE_ARMS), seeds=(100,)),
    "schedules": ArmSet(tuple(SCHEDULE_ARMS), seeds=(100,)),
}


@dataclass(frozen=True)
class Job:
    """Commands of `ppdgrow` that make one run, one after the other."""

    name: str
    seed: int
    commands: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All jobs of a size: shallow models first, then what starts from them."""

    recipe: Path
    size: Size
    out: Path
    baseline: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    test: bool = False

    def folder(self, arm: str, seed: int) -> str:
        """Where a run goes; the runs of an arm lie side by side in its folder."""
        return str(self.out / arm / f"seed-{seed}")

    def shallow_jobs(self) -> list[Job]:
        """The shallow models that the arms start from, each once."""
        starts = dict.fromkeys(self._start(ARMS[arm]) for arm in self.arms if ARMS[arm].shallow is not None)
        return [
            Job(self._shallow_name(*start), seed, (self._shallow(*start, seed),))
            for seed in self.seeds
            for start in starts
        ]

    def arm_jobs(self) -> list[Job]:
        """One per arm and seed."""
        return [Job(name, seed, self._commands(name, ARMS[name], seed)) for seed in self.seeds for name in self.arms]

    def reports(self) -> list[tuple[str, ...]]:
        """The commands that end it all: pages and a picture, and the same against the baseline of equal FLOPs."""
        names = dict.fromkeys((self.baseline, *self.arms))
        arms = [arm for arm in names if any((self.out / arm).glob("seed-*/checkpoints/step-*"))]
        if arms[:1] != [self.baseline] or len(arms) < 2:
            return []
        commands = [self._report(arms, self.out)]
        if EQUAL in arms:
            rest = [arm for arm in arms if arm != EQUAL]
            commands.append(self._report([EQUAL, *rest], Path(f"{self.out}-against-equal-flops")))
        return commands

    def _report(self, arms: Sequence[str], page: Path) -> tuple[str, ...]:
        files = ("--report", f"{page}.html", "--report", f"{page}.md", "--plot", f"{page}.svg")
        return ("compare", *(str(self.out / arm) for arm in arms), *(["--test"] if self.test else []), *files)

    def _start(self, arm: Arm) -> tuple[int, int]:
        at = self.size.at if arm.at is None else round(arm.at * self.size.steps)
        return arm.shallow or 0, at

    def _shallow_name(self, layers: int, at: int) -> str:
        return f"shallow-{layers}-{at}"

    def _shallow(self, layers: int, at: int, seed: int) -> tuple[str, ...]:
        """Its rate is that of a run of the whole budget, so that what follows goes on in the same schedule."""
        name = self._shallow_name(layers, at)
        return self._train(name, seed, at, f"--layers {layers} --horizon {self.size.steps}", scratch=True)

    def _commands(self, name: str, arm: Arm, seed: int) -> tuple[tuple[str, ...], ...]:
        options = arm.train.format(wider=self.size.wider)
        if arm.budget is not None:
            steps = round(arm.budget / self._tflop_per_step(arm))
            return (self._train(name, seed, steps, arm.at_steps(steps), scratch=True),)
        if arm.shallow is None:
            steps = self.size.equal_steps if arm.equal_steps else self.size.steps
            return (self._train(name, seed, steps, options, scratch=True),)
        layers, at = self._start(arm)
        commands, parent = [], self.folder(self._shallow_name(layers, at), seed)
        if arm.grow is not None:
            child = self.folder(f"{name}-inserted", seed)
            commands.append(("grow", parent, *shlex.split(arm.grow), "--out", child))
            parent = child
        options = f"--horizon {self.size.steps} {options}"
        commands.append(self._train(name, seed, self.size.steps - at, options, parent=parent))
        return tuple(commands)

    def _tflop_per_step(self, arm: Arm) -> float:
        """TFLOP of a step, on average over the run, growths included; as `train --dry-run` says."""
        steps = 10_000
        options = shlex.split(arm.at_steps(steps))
        command = ("train", "--recipe", str(self.recipe), *options, "--steps", str(steps), "--dry-run", "--json")
        found = subprocess.run([sys.executable, "-m", "ppdgrow", *command], capture_output=True, text=True, check=True)
        flops: float = json.loads(found.stdout)["flops"]
        return flops / steps / 1e12

    def _train(
        self, name: str, seed: int, steps: int, options: str, *, scratch: bool = False, parent: str = ""
    ) -> tuple[str, ...]:
        source = ("--recipe", str(self.recipe), "--seed", str(seed)) if scratch else (parent,)
        return ("train", *source, *shlex.split(options), "--steps", str(steps), "--out", self.folder(name, seed))


@dataclass
class Runner:
    """Runs jobs, `jobs` at a time. A signal is handed on to the commands that run, which save and end."""

    logs: Path
    jobs: int
    lock: int
    live: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stopped: bool = False

    def all(self, jobs: Sequence[Job]) -> list[Job]:
        """Run them, and those that failed once more; returns those that failed again."""
        return self._once(self._once(jobs))

    def _once(self, jobs: Sequence[Job]) -> list[Job]:
        failed = []
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(self._run, job): job for job in jobs}
            for number, future in enumerate(as_completed(futures), start=1):
                job = futures[future]
                if self.stopped:
                    continue
                if not future.result():
                    failed.append(job)
                say(f"[{number}/{len(jobs)}] {job}: {'done' if future.result() else f'failed, see {self.log(job)}'}")
        return failed

    def log(self, job: Job) -> Path:
        """What the commands of a job said."""
        return self.logs / f"{job.name}-seed-{job.seed}.log"

    def _run(self, job: Job) -> bool:
        return all(self._command(command, self.log(job)) for command in job.commands)

    def _command(self, command: Sequence[str], log: Path) -> bool:
        if self.stopped:
            return False
        with log.open("ab") as page:
            # A session of its own: Ctrl-C reaches it once, through `stop`, and not a second time from the terminal.
            process = subprocess.Popen(
                [sys.executable, "-m", "ppdgrow", *command],
                stdout=page,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock,),
            )
            self.live.add(process)
            if self.stopped:  # the signal came while it started
                process.terminate()
            code = process.wait()
            self.live.discard(process)
        return code == 0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Hand a signal on, once."""
        if not self.stopped:
            say("stopping: the running commands save where they are; give the same line again to go on")
        self.stopped = True
        for process in list(self.live):
            process.terminate()


def lock(folder: Path) -> int:
    """Hold the folder, as a file descriptor that the commands inherit: also those that outlive a killed script."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for the runs of another call in {folder}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def say(text: str) -> None:
    """One line of narration."""
    print(text, file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number above 0")
    return int(text)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("set", nargs="?", default="headline", choices=SETS, help="arms that answer one question")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the set")
    parser.add_argument("--arms", nargs="+", choices=ARMS, metavar="ARM", help=f"some of: {', '.join(ARMS)}")
    parser.add_argument("--jobs", type=positive, default=2, help="runs at a time, each with one thread (default: 2)")
    parser.add_argument("--out", type=Path, help="default: runs/SIZE-SET")
    parser.add_argument("--no-report", action="store_true", help="train only")
    return parser.parse_args(arguments)


def main() -> NoReturn:
    """Train what is not trained yet, then report."""
    options = parse(sys.argv[1:])
    chosen = SETS[options.set]
    out = options.out or Path("runs") / f"{options.size}-{options.set}"
    arms = [arm for arm in dict.fromkeys((*chosen.arms, *ARMS)) if arm in (options.arms or chosen.arms)]
    plan = Plan(
        recipe=RECIPES / f"{options.size}.yaml",
        size=SIZES[options.size],
        out=out,
        baseline=chosen.arms[0],
        arms=tuple(arms),
        seeds=tuple(options.seeds or chosen.seeds),
        test=chosen.test,
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    runner = Runner(logs, options.jobs, lock(out))
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: (received.append(number), runner.stop(number, frame)))
    runner.all(plan.shallow_jobs())  # an arm whose shallow model failed fails too, and its log says why
    failed = runner.all(plan.arm_jobs())
    if received:
        sys.exit(128 + received[0])
    if failed:
        say(f"{len(failed)} runs failed and are left out of the report: {'; '.join(map(str, failed))}")
    codes = [] if options.no_report else [run_to_end(command) for command in plan.reports()]
    if not codes and not options.no_report:
        say(f"no report: it needs the arm {chosen.arms[0]} and another one")
    sys.exit(1 if failed else max(codes, default=0))


def run_to_end(command: Sequence[str]) -> int:
    """Run a command of `ppdgrow` on this terminal."""
    return subprocess.run([sys.executable, "-m", "ppdgrow", *command]).returncode


if __name__ == "__main__":
    main()
