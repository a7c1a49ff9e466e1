"""`probe` of a folder of Transformers: what its layers and pairs do to the hidden states of a synthetic batch.

There is no data, so that no loss is measured, neither of the model nor without a pair.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ppdgrow.config.requests import ProbeRequest
from ppdgrow.engine.device import autocast, resolve_device
from ppdgrow.errors import ConfigError, DivergedError
from ppdgrow.pretrained.check import run_synthetic
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.library import quiet
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.modeling_ppdgrow import CouplingPair, OrthogonalPair, orthogonal
from ppdgrow.pretrained.skeleton import layer_list
from ppdgrow.probing.cancellation import (
    DTYPES,
    ROUND_TRIP_DTYPES,
    Deviation,
    Member,
    deviation,
    distance,
    where_implemented,
)
from ppdgrow.probing.report import BlockReport, Orthogonality, PairReport, ProbeReport, RoundTrip
from ppdgrow.probing.roundoff import bound, matrix_error, orthogonality_bound

PAIRS = (CouplingPair, OrthogonalPair)


@dataclass(frozen=True)
class Call:
    """What a layer or pair was called with, the stream `(B, T, D)` and its other arguments, and what it made of it."""

    x: Tensor
    arguments: Mapping[str, Any]
    y: Tensor

    def apply(self, function: Callable[[Tensor, Mapping[str, Any]], Tensor], dtype_name: str) -> Deviation | None:
        """How far `function` takes the stream from itself, all in one type; None where the device cannot run it."""
        dtype = DTYPES[dtype_name]
        x = self.x.to(dtype)
        arguments = tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, dict(self.arguments))
        with torch.no_grad(), autocast(x.device, "bf16" if dtype_name == "bf16_autocast" else "fp32"):
            return where_implemented(lambda: deviation((x,), (function(x, arguments),)))

    @property
    def activity(self) -> float:
        """|y - x| / |x|."""
        return float((self.y - self.x).double().norm() / self.x.double().norm())


def probe_folder(request: ProbeRequest, path: Path) -> ProbeReport:
    """Probe the layers and pairs of the folder `path`, which the request names, on a synthetic batch.

    Raises:
        ConfigError: an option that a folder of Transformers has no use for, or Transformers is not installed.
        DivergedError: the outputs are not finite.
        InvalidInputError: the folder is not whole.
    """
    for name in ("plot", "sample", "precision", "data_dir"):
        if getattr(request, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for a run: leave it out for a folder of Transformers")
    folder = read_folder(path)
    with quiet():
        model = load_pretrained(folder.path).to(resolve_device(request.device)).eval()
    _, layers = layer_list(model, folder.num_layers, folder)
    blocks = dict(_blocks(layers))
    pairs = {name: block for name, block in blocks.items() if isinstance(block, PAIRS)}
    kinds = {block["id"]: block["kind"] for block in folder.config["pairs"]["blocks"]} if pairs else {}
    calls = _calls(model, blocks)
    norms = _gradients(model, blocks)
    reports = {
        name: _pair_report(name, kinds[name], pair, calls[name], request.dtypes, norms[name])
        for name, pair in pairs.items()
    }
    table = tuple(
        BlockReport(
            id=name,
            kind=f"{kinds[name]} pair" if name in pairs else "layer",
            round_trip=reports[name].round_trip if name in pairs else None,
            gradient_norm=norms[name],
            activity=calls[name].activity,
            parameters=sum(parameter.numel() for parameter in _own(module)),
            half_steps=None,
        )
        for name, module in blocks.items()
    )
    return ProbeReport(None, tuple(reports.values()), table)


def _blocks(layers: nn.ModuleList) -> Iterator[tuple[str, nn.Module]]:
    """Layers and pairs in the order in which they run."""
    for number, layer in enumerate(layers, 1):
        pairs, before = dict(getattr(layer, "pairs", {}).items()), getattr(layer, "before", ())
        yield from ((name, pairs.pop(name)) for name in before)
        yield f"l{number}", layer
        yield from pairs.items()


def _calls(model: Any, blocks: Mapping[str, nn.Module]) -> dict[str, Call]:
    """What each layer and pair was called with on the synthetic batch; what a layer makes is without its pairs."""
    calls: dict[str, Call] = {}

    def recording(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
            first = args[0] if args else kwargs["hidden_states"]
            arguments = args[1] if isinstance(module, PAIRS) else {}
            calls[name] = Call(first, arguments, output[0] if isinstance(output, tuple) else output)

        return hook

    with ExitStack() as hooks, torch.no_grad():
        for name, block in blocks.items():
            hooks.enter_context(block.register_forward_hook(recording(name), with_kwargs=True))
        found = run_synthetic(model)
    if not all(output.isfinite().all() for output in found.values() if output.is_floating_point()):
        raise DivergedError(
            "the outputs on a synthetic batch are not finite: the weights are damaged, or overflow in their type"
        )
    for name, block in blocks.items():
        own = [calls[pair] for pair in getattr(block, "pairs", {})]
        before = len(getattr(block, "before", ()))
        if own[:before]:
            calls[name] = replace(calls[name], x=own[before - 1].y)
        if own[before:]:
            calls[name] = replace(calls[name], y=own[before].x)
    return calls


def _gradients(model: Any, blocks: Mapping[str, nn.Module]) -> dict[str, float]:
    """Gradient norms of each block for the mean square of the model's output; the gradients stay on the parameters."""
    next(iter(run_synthetic(model).values())).float().square().mean().backward()  # type: ignore[no-untyped-call]
    return {
        name: float(torch.nn.utils.get_total_norm([p.grad for p in _own(block) if p.grad is not None]))
        for name, block in blocks.items()
    }


def _own(block: nn.Module) -> list[nn.Parameter]:
    """The parameters of a pair, or of a layer without its pairs."""
    return [parameter for name, parameter in block.named_parameters() if not name.startswith("pairs.")]


def _pair_report(name: str, kind: str, pair: Any, call: Call, dtypes: Sequence[str], norm: float) -> PairReport:
    members = list(_members(pair))
    separation = distance(members, lambda parameter: parameter.detach(), sign=-1.0)
    measured = {dtype: call.apply(_in_type(pair, dtype), dtype) for dtype in dtypes}
    orthogonality = None
    if isinstance(pair, OrthogonalPair):
        plus, minus = (matrix_error(orthogonal(member.detach().float())) for member in (pair.plus, pair.minus))
        orthogonality = Orthogonality(plus, minus, orthogonality_bound(pair.plus.shape[0]))
    return PairReport(
        id=name,
        kind=kind,
        tied=separation == 0,
        cancellation={dtype: found for dtype, found in measured.items() if found is not None},
        round_trip=_round_trip(pair, call, dtypes),
        gradient_antisymmetry=distance(members, lambda parameter: parameter.grad, sign=1.0) if norm else None,
        separation=separation,
        activity=call.activity,
        ablation_loss=None,
        gradient_norm=norm,
        orthogonality=orthogonality,
        theta_0=None,
    )


def _in_type(pair: Any, dtype_name: str) -> Any:
    """A copy of a pair whose weights are of one type."""
    return copy.deepcopy(pair).to(DTYPES[dtype_name])


def _there_and_back(pair: Any, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    back: Tensor = pair.inverse(pair(x, arguments), arguments)
    return back


def _round_trip(pair: Any, call: Call, dtypes: Sequence[str]) -> RoundTrip:
    """How far the pair's inverse misses its input, and the bound that follows from its branch-to-stream ratio."""
    found: dict[str, float] = {}
    for name in ROUND_TRIP_DTYPES:
        if name in ("fp64", "fp32", *dtypes):
            module = _in_type(pair, name)
            miss = call.apply(partial(_there_and_back, module), name)
            found |= {} if miss is None else {name: miss.relative}
    terms: list[Tensor] = []
    with ExitStack() as hooks, torch.no_grad():
        for branch in pair.children():
            hooks.enter_context(branch.register_forward_hook(lambda *seen: terms.append(seen[-1])))
        y = pair(call.x, call.arguments)
    largest = float(call.x.abs().max())
    ratio = max(float(term.abs().max()) for term in terms or [y - call.x]) / largest
    dependent = 1 if isinstance(pair, OrthogonalPair) else 2
    return RoundTrip(found, ratio, {name: bound(ratio, DTYPES[name], pair, dependent=dependent) for name in found})


def _members(pair: Any) -> Iterator[Member]:
    """The members of a pair, parameter by parameter."""
    if isinstance(pair, OrthogonalPair):
        yield pair.plus, pair.minus, 1.0
        return
    for plus, minus in ((pair.f_plus, pair.f_minus), (pair.g_plus, pair.g_minus)):
        folded = {id(parameter) for parameter in minus.output_projection().parameters()}
        for first, second in zip(plus.parameters(), minus.parameters(), strict=True):
            yield first, second, -1.0 if id(second) in folded else 1.0
