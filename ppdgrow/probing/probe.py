"""`probe`: what the pairs and blocks of a checkpoint do, measured on real hidden states."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ppdgrow.checkpoint.lineage import insertions
from ppdgrow.config.architecture import BlockSpec
from ppdgrow.config.requests import ProbeRequest
from ppdgrow.console import Narrator
from ppdgrow.console.picture import SUFFIXES, check_file, check_matplotlib, write_output
from ppdgrow.data import Batch
from ppdgrow.engine.device import autocast
from ppdgrow.engine.evaluate import mean_loss
from ppdgrow.nn.cost import block_parameters, half_steps_by_block
from ppdgrow.nn.coupling import Coupling, Pair
from ppdgrow.nn.linear import LinearPair
from ppdgrow.nn.model import AnyPair, Model, State, build_model
from ppdgrow.pretrained.library import require_transformers
from ppdgrow.pretrained.recognition import pretrained_folder
from ppdgrow.probing import cancellation as measure
from ppdgrow.probing import roundoff
from ppdgrow.probing.cancellation import DTYPES, ROUND_TRIP_DTYPES
from ppdgrow.probing.plot import draw
from ppdgrow.probing.report import BlockReport, Orthogonality, PairReport, ProbeReport, RoundTrip, ThetaRecord
from ppdgrow.probing.sample import DEFAULT_TOKENS, continue_text
from ppdgrow.surgery.apply import theta_digest
from ppdgrow.training.context import Setting, checkpoint_setting, load_parent, warn_of_changes


def probe(request: ProbeRequest, narrator: Narrator) -> ProbeReport:
    """Probe a checkpoint, or a folder of Transformers, and draw what it found if that is asked for.

    Raises:
        ConfigError: an unknown dtype, device or kind of picture, or nothing to draw with.
        InvalidInputError: the checkpoint or its data is not there or not whole.
        StorageError: the picture cannot be written.
    """
    if (folder := pretrained_folder(request.checkpoint)) is not None:
        require_transformers(folder)
        from ppdgrow.probing.folder import probe_folder

        return probe_folder(request, folder)
    if request.plot is not None:
        check_file(request.plot, "--plot", SUFFIXES)
        check_matplotlib("--plot")
    parent = load_parent(request.checkpoint, optimizer=False)
    setting = checkpoint_setting(parent, device=request.device, precision=request.precision, data_dir=request.data_dir)
    checkpoint = parent.checkpoint
    model = build_model(checkpoint.architecture, checkpoint.tensors, setting.device)
    sample = None
    if request.sample is not None:
        tokens = DEFAULT_TOKENS if request.tokens is None else request.tokens
        sample = continue_text(model.eval(), setting, request.sample, tokens=tokens, seed=request.seed or 0)
    batches = setting.evaluation()
    warn_of_changes(setting.dataset, parent, narrator)
    recorded = {pair: digest for event in insertions(parent.lineage()) for pair, digest in event.theta_sha256.items()}
    rounded = checkpoint.stored in (torch.bfloat16, torch.float16)
    report = probe_model(model, setting, batches, request.dtypes, recorded, rounded=rounded)
    if request.plot is not None:
        title = f"{parent.run.path.name}, step {parent.step}"
        picture = draw(report.blocks, request.plot.suffix.lower().removeprefix("."), title=title)
        write_output(request.plot, "--plot", picture)
    return replace(report, sample=sample)


def probe_model(
    model: Model,
    setting: Setting,
    batches: Sequence[Batch],
    dtypes: Sequence[str] = tuple(DTYPES),
    recorded: Mapping[str, str] | None = None,
    *,
    rounded: bool = False,
) -> ProbeReport:
    """Probe a model as it stands in memory, on the setting's device; it is not changed.

    Args:
        model: which of its pairs are tied is what its architecture records.
        setting: device, precision and data.
        batches: fixed batches; hidden states and gradients are those of the first.
        dtypes: names in `DTYPES` in which to measure the cancellation, and inverses in bf16 too if it is among them.
        recorded: sha256 of theta_0 by pair id, to hold tied pairs against; without it none is.
        rounded: the weights went through a narrower type since, so that another sha256 means nothing.
    """
    model = copy.deepcopy(model).eval()
    architecture = model.architecture
    states = _states(model, batches[0], setting)
    modules = dict(model.named_blocks())
    norms, antisymmetry = _gradients(model, batches[0], setting)
    loss = setting.evaluate(model, batches).loss
    half_steps = dict(half_steps_by_block(architecture))
    trip_dtypes = [name for name in ROUND_TRIP_DTYPES if name in ("fp64", "fp32", *dtypes)]
    pairs, blocks = [], []
    for spec in architecture.blocks:
        module, state = modules[spec.id], states[spec.id]
        trip = _round_trips(module, state, trip_dtypes) if isinstance(module, Coupling | Pair | LinearPair) else None
        block = BlockReport(
            id=spec.id,
            kind=f"{spec.kind} pair" if spec.type == "pair" else "layer",
            round_trip=trip,
            gradient_norm=norms[spec.id],
            activity=measure.activity(module, state),
            parameters=block_parameters(architecture, spec),
            half_steps=half_steps[spec.id],
        )
        blocks.append(block)
        if isinstance(module, Pair | LinearPair) and trip is not None:
            measured = {name: measure.cancellation(module, state, name) for name in dtypes}
            pairs.append(
                PairReport(
                    id=spec.id,
                    kind=spec.kind,
                    tied=spec.state == "tied",
                    cancellation={name: value for name, value in measured.items() if value is not None},
                    round_trip=trip,
                    gradient_antisymmetry=antisymmetry[spec.id],
                    separation=measure.separation(module),
                    activity=block.activity,
                    ablation_loss=setting.evaluate(_Ablated(model, spec.id), batches).loss,
                    gradient_norm=block.gradient_norm,
                    orthogonality=_orthogonality(module, architecture.width),
                    theta_0=_theta_record(model, spec, recorded, rounded),
                )
            )
    return ProbeReport(loss, tuple(pairs), tuple(blocks))


def _round_trips(block: Coupling | AnyPair, state: State, dtypes: Sequence[str]) -> RoundTrip:
    """The inverse in each dtype beside the bound that follows from the block's branch-to-stream ratio."""
    ratio = roundoff.branch_ratio(block, measure.as_halves(state))
    measured = {name: measure.round_trip(block, state, DTYPES[name]) for name in dtypes}
    found = {name: figure.relative for name, figure in measured.items() if figure is not None}
    return RoundTrip(found, ratio, {name: roundoff.round_trip_bound(block, ratio, DTYPES[name]) for name in found})


def _orthogonality(pair: AnyPair, width: int) -> Orthogonality | None:
    if not isinstance(pair, LinearPair):
        return None
    minus = None if pair.minus is None else roundoff.orthogonality_error(pair.minus)
    return Orthogonality(roundoff.orthogonality_error(pair.plus), minus, roundoff.orthogonality_bound(width))


def _theta_record(
    model: Model, spec: BlockSpec, recorded: Mapping[str, str] | None, rounded: bool
) -> ThetaRecord | None:
    """Whether a tied pair still holds the theta_0 with which it was inserted."""
    if recorded is None or spec.state != "tied":
        return None
    if spec.id not in recorded:
        return "not recorded"
    if theta_digest(model.state_dict(), spec.id) == recorded[spec.id]:
        return "as recorded"
    return "rounded" if rounded else "changed"


@torch.no_grad()
def _states(model: Model, batch: Batch, setting: Setting) -> dict[str, State]:
    """The stream before each block, by block id, detached."""
    states: dict[str, State] = {}
    with autocast(setting.device, setting.precision):
        model.run(batch.inputs, before_block=states.__setitem__)
    return states


def _gradients(model: Model, batch: Batch, setting: Setting) -> tuple[dict[str, float], dict[str, float | None]]:
    """Gradient norm per block, and per pair how far its members' gradients are from opposites."""
    separated = copy.deepcopy(model)
    pairs = {block_id: block for block_id, block in separated.named_blocks() if isinstance(block, Pair | LinearPair)}
    for pair in pairs.values():
        if pair.minus is None:  # an equal second member, unfolded, has gradients of its own
            pair.minus = copy.deepcopy(pair.plus)
    with autocast(setting.device, setting.precision):
        logits = separated(batch.inputs)
    mean_loss(logits, batch.targets).backward()  # type: ignore[no-untyped-call]
    norms = {
        block_id: float(torch.nn.utils.get_total_norm([p.grad for p in block.parameters() if p.grad is not None]))
        for block_id, block in separated.named_blocks()
    }
    return norms, {block_id: measure.gradient_antisymmetry(pair) for block_id, pair in pairs.items()}


class _Ablated(torch.nn.Module):
    """A model with one block left out."""

    def __init__(self, model: Model, block_id: str) -> None:
        super().__init__()
        self.model, self.skip = model, frozenset([block_id])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model.run(inputs, skip=self.skip)
