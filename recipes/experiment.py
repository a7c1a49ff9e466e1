"""The experiments: does untying a cancelling pair help, and does growing pay?

Trains every arm with every seed of a size, some at a time, and ends with a report beside the folder of the runs.
First experiment (sizes `..-cpu` and `..-gpu`): 6 layers are trained for a while, grown to 12 in several ways and
trained on, against models that have 6 or 12 layers from the start. Arms that start from the same shallow model share
it; its cost counts for each of them.
Second experiment (sizes `..-front`): at equal FLOPs, shallow models that grow within their run against models of all
depths, each trained for as many steps as the budget pays.

Run:   python recipes/experiment.py wikitext2-cpu        (where ppdgrow is installed, with its extra `plot`;
       python recipes/experiment.py wikitext2-front      PPDGROW_DATA=FOLDER with wikitext-2/ and cifar10/, else a
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
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

from experiment_arms import ARMS, EQUAL, SETS, SIZES, Arm, Size

# As short as can be: the commands are recorded with the runs.
RECIPES = Path(os.path.relpath(Path(__file__).parent))


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
    """All jobs of a size: shallow models first, then what starts from them.

    The runs in the folder `beside`, of another set, stand in the report too.
    """

    recipe: Path
    size: Size
    out: Path
    baseline: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    test: bool = False
    beside: Path | None = None

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
        others = [] if self.beside is None else sorted({run.parent for run in self.beside.glob("*/seed-*")})
        folders = map(str, (*(self.out / arm for arm in arms), *others))
        return ("compare", *folders, *(["--test"] if self.test else []), *files)

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
        options = arm.train.replace("{wider}", self.size.wider)
        if arm.budget is not None:
            rate = self.size.rates.get(arm.layers or 0)
            options += "" if rate is None else f" --lr {rate:g}"
            steps = round(self.size.budgets[arm.budget] / tflop_per_step(self.recipe, options))
            return (self._train(name, seed, steps, options, scratch=True),)
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

    def _train(
        self, name: str, seed: int, steps: int, options: str, *, scratch: bool = False, parent: str = ""
    ) -> tuple[str, ...]:
        source = ("--recipe", str(self.recipe), "--seed", str(seed)) if scratch else (parent,)
        return ("train", *source, *shlex.split(options), "--steps", str(steps), "--out", self.folder(name, seed))


@cache
def tflop_per_step(recipe: Path, options: str) -> float:
    """TFLOP of a step of `train`, on average over a run that may grow, as its dry run says."""
    steps = 10_000
    words = ("train", "--recipe", str(recipe), *shlex.split(options), "--steps", str(steps), "--dry-run", "--json")
    found = subprocess.run((sys.executable, "-m", "ppdgrow", *words), stdout=subprocess.PIPE, check=True)
    flops: float = json.loads(found.stdout)["flops"]
    return flops / steps / 1e12


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
    parser.add_argument(
        "set", nargs="?", choices=SETS, help="arms that answer one question (default: headline or payoff)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the set")
    parser.add_argument("--arms", nargs="+", choices=ARMS, metavar="ARM", help=f"some of: {', '.join(ARMS)}")
    parser.add_argument("--jobs", type=positive, default=2, help="runs at a time, each with one thread (default: 2)")
    parser.add_argument("--out", type=Path, help="default: runs/SIZE-SET")
    parser.add_argument("--no-report", action="store_true", help="train only")
    return parser.parse_args(arguments)


def main() -> NoReturn:
    """Train what is not trained yet, then report."""
    options = parse(sys.argv[1:])
    size = SIZES[options.size]
    name = options.set or ("payoff" if size.budgets else "headline")
    chosen = SETS[name]
    if not size.budgets and any(ARMS[arm].budget for arm in chosen.arms):
        say(f"error: the set {name} needs budgets, which {options.size} has not: choose a size such as wikitext2-front")
        sys.exit(2)
    out = options.out or Path("runs") / f"{options.size}-{name}"
    arms = [arm for arm in dict.fromkeys((*chosen.arms, *ARMS)) if arm in (options.arms or chosen.arms)]
    plan = Plan(
        recipe=RECIPES / f"{options.size}.yaml",
        size=size,
        out=out,
        baseline=chosen.arms[0],
        arms=tuple(arms),
        seeds=tuple(options.seeds or chosen.seeds),
        test=chosen.test,
        beside=chosen.beside and Path("runs") / f"{options.size}-{chosen.beside}",
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
