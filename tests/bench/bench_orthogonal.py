"""Which of torch's three orthogonal maps an orthogonal pair is built from: time, accuracy, meta device. Run by hand:

    OMP_NUM_THREADS=1 python tests/bench/bench_orthogonal.py [--widths 64,256] [--repeats 20] [--steps 100]

Times are medians of formation + backward + AdamW step; the maps take turns (A B C A B C), so that a busy machine
slows all of them alike. The error is max |W^T W - I| after AdamW steps at rate 1e-2 with weight decay 0.1. The table
is read as ratios on one machine.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

MAPS = ("cayley", "matrix_exp", "householder")


class Trained:
    """One orthogonal D x D map with its optimizer and a target of its own."""

    def __init__(self, name: str, width: int) -> None:
        torch.manual_seed(0)
        self.layer = make(name, width)
        self.target = torch.randn(width, width) / width**0.5
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=1e-2, weight_decay=0.1)

    def step(self) -> None:
        """Form W, go back through it, update its parameters."""
        loss = (self.layer.weight - self.target).square().sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def error(self) -> float:
        """max |W^T W - I|."""
        weight: Tensor = self.layer.weight
        return float((weight.mT @ weight - torch.eye(weight.shape[0])).abs().max())


def make(name: str, width: int) -> nn.Linear:
    """As `OrthogonalMap` makes it, without a stored base."""
    layer = nn.Linear(width, width, bias=False)
    return parametrizations.orthogonal(layer, orthogonal_map=name, use_trivialization=False)  # type: ignore[return-value]


def works_on_meta(name: str) -> bool:
    """Whether names and shapes can be had without allocating."""
    try:
        with torch.device("meta"):
            make(name, 16).state_dict()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def seconds(trained: Trained) -> float:
    """Of one step."""
    start = time.perf_counter()
    trained.step()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", default="64,256")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {platform.system()}, {torch.get_num_threads()} threads, ",
        end="",
    )
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, CPU {torch.backends.cpu.get_cpu_capability()}"
    )
    print(
        f"{'width':>5} {'map':<12} {'ms/step':>8} {'ratio':>6} {f'error after {options.steps} steps':>23} {'meta':>5}"
    )
    for width in (int(part) for part in options.widths.split(",")):
        timed = {name: Trained(name, width) for name in MAPS}
        for trained in timed.values():
            trained.step()
        times: dict[str, list[float]] = {name: [] for name in MAPS}
        for _ in range(options.repeats):
            for name in MAPS:
                times[name].append(seconds(timed[name]))
        fastest = min(statistics.median(values) for values in times.values())
        for name in MAPS:
            fresh = Trained(name, width)
            for _ in range(options.steps):
                fresh.step()
            median = statistics.median(times[name])
            meta = "yes" if works_on_meta(name) else "no"
            print(
                f"{width:>5} {name:<12} {median * 1e3:>8.2f} {median / fastest:>6.2f} {fresh.error():>23.1e} {meta:>5}",
                flush=True,
            )


if __name__ == "__main__":
    main()
