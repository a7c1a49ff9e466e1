"""The first values of pairs: drawn as the model draws its own, or cut from the layer before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from ppdgrow.errors import ConfigError, first_line
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.cut import Cut, cut_of
from ppdgrow.pretrained.folder import TensorEntry
from ppdgrow.pretrained.library import quiet, without_kernels
from ppdgrow.pretrained.parent_model import ParentModel, input_width, is_transposed
from ppdgrow.pretrained.plain import DTYPES
from ppdgrow.pretrained.write import NewTensor
from ppdgrow.seeding import generator

CHUNK = 2**20  # numbers at a time


class PairValues:
    """The first values of pairs. They are made while they are written, some rows at a time, from the disk or drawn."""

    def __init__(self, parent: ParentModel, config: Mapping[str, Any], source: str, scale: float, seed: int) -> None:
        self.parent, self.source, self.scale, self.seed = parent, source, scale, seed
        facade = getattr(modeling, config["architectures"][0])
        config = {**config, "base": without_kernels(config["base"])}
        try:
            with torch.device("meta"), quiet():
                self.model: Any = facade._from_config(modeling.PPDGrowConfig.from_dict(config))
        except ValueError as error:
            raise ConfigError(
                f"{str(parent.folder.path)!r}: half of a layer cannot be built ({first_line(error)}): use --pair ffn, "
                "or --method zero, copy or fresh"
            ) from None
        self.layers = self.model.base_model.get_submodule(config["pairs"]["layers"])
        self.pairs = config["pairs"]

    def refuse_other_heads(self) -> None:
        """Hold the heads of attention branches against the model's: position embeddings are of their size."""
        half = self.parent.sizes.half()
        for block in self.pairs["blocks"]:
            if block["kind"] != "attention":
                continue
            projection = self._pair(block).f_plus.output_projection()
            if input_width(projection) != half.heads * half.head_dim:
                folder, count = self.parent.folder, self.parent.sizes.heads
                raise ConfigError(
                    f"the {count} heads of {str(folder.path)!r} cannot be halved, since in model_type "
                    f"{folder.model_type!r} their size follows from their number: use --pair ffn"
                )

    def _pair(self, block: Mapping[str, Any]) -> Any:
        return self.layers[modeling.layer_of(block)].pairs[block["id"]]

    def tensors(self, block: Mapping[str, Any]) -> Iterator[NewTensor]:
        """The new tensors of a pair, under the names that they have beside the parent's.

        Raises:
            ConfigError: one of them can be neither cut nor drawn.
        """
        layer = modeling.layer_of(block)
        dtype = self.parent.dtype(layer)
        itemsize = DTYPES[dtype].itemsize
        for name, tensor in self._pair(block).state_dict().items():
            full = f"{self.parent.folder.layers}{layer}.pairs.{block['id']}.{name}"
            make = self._cut(block, name, tensor) if self.is_cut(block) else None
            make = make or partial(self._drawn, block, name)
            chunks = partial(_as_bytes, make, self._factor(block, name), DTYPES[dtype])
            yield NewTensor(full, dtype, tuple(tensor.shape), tensor.numel() * itemsize, chunks)

    def _factor(self, block: Mapping[str, Any], name: str) -> float:
        """That of an output projection: the scale, with the other sign in the second member."""
        member, _, inside = name.partition(".")
        if block["kind"] not in modeling.KINDS or inside.rpartition(".")[0] != getattr(self._pair(block), member).end:
            return 1.0
        return -self.scale if member.endswith("_minus") else self.scale

    def _drawn(self, block: Mapping[str, Any], name: str) -> Iterator[Tensor]:
        """As the model draws its own; both members have the same draw, and each module one of its own."""
        path, _, parameter = name.replace("_minus", "_plus").replace("minus", "plus").rpartition(".")
        module = copy.deepcopy(self._pair(block).get_submodule(path)).to_empty(device="cpu").float()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for each in module.parameters():
                each.fill_(torch.nan)
            torch.manual_seed(generator(self.seed, "pair", block["id"], path).initial_seed())
            self.model._init_weights(module)
            if hasattr(module, "reset"):
                module.reset()
        values = module.get_parameter(parameter).detach()
        if values.isnan().any():
            raise ConfigError(f"{type(self.model).__name__} does not say how {name} is drawn: use --source slice")
        yield from torch.split(values, max(1, CHUNK // values[0].numel()))

    def is_cut(self, block: Mapping[str, Any]) -> bool:
        """Whether a pair's branches are cut from the layer: it is asked for, and the layer has such branches."""
        return self.source == "slice" and not {"attention", "mlp"}.isdisjoint(modeling.KINDS.get(block["kind"], ()))

    def _cut(self, block: Mapping[str, Any], name: str, tensor: Tensor) -> Callable[[], Iterator[Tensor]] | None:
        """How a tensor is read from the layer, some rows at a time; None for a norm that the first layer lacks."""
        layer = modeling.layer_of(block)
        member, child, *inside, kind = name.split(".")
        part = modeling.KINDS[block["kind"]]["fg".index(member[0])]
        module = ".".join((dict(self.pairs["parts"][part])[child], *inside))
        entry, is_norm = self.parent.entry(layer, f"{module}.{kind}"), child == "norm"
        if entry is None and is_norm:
            return None
        what = f"layer {layer + 1} of {str(self.parent.folder.path)!r}: {module}.{kind}"
        if entry is None:
            raise ConfigError(f"{what} is not among the tensors: use --source random")
        cut = cut_of(
            entry.shape,
            module,
            family=self.parent.family,
            role=member[0],
            sizes=self.parent.sizes,
            transposed=is_transposed(self._pair(block).get_submodule(name.rpartition(".")[0])),
            norm=is_norm,
        )
        if cut.last_row >= entry.shape[0] or cut.shape(entry.shape) != tuple(tensor.shape):
            raise ConfigError(
                f"{what} of shape {list(entry.shape)} is not cut into {list(tensor.shape)}: use --source random"
            )
        return partial(self._cut_rows, entry, cut)

    def _cut_rows(self, entry: TensorEntry, cut: Cut) -> Iterator[Tensor]:
        for rows in torch.split(cut.rows, max(1, CHUNK // prod(entry.shape[1:]))):
            first = int(rows.min())
            read = self.parent.rows(entry, first, int(rows.max()) + 1)[rows - first].float()
            yield (read if cut.columns is None else read[:, cut.columns]) * cut.factor

    def in_words(self, blocks: Sequence[Mapping[str, Any]]) -> str:
        """Where the first weights come from."""
        cut = [block for block in blocks if self.is_cut(block)]
        drawn = [block["id"] for block in blocks if block not in cut]
        if not cut:
            return "drawn at random"
        from_layers = ", ".join(f"{block['id']} from layer {modeling.layer_of(block) + 1}" for block in cut)
        return f"sliced: {from_layers}" + (f"; drawn at random: {', '.join(drawn)}" if drawn else "")


def _as_bytes(make: Callable[[], Iterator[Tensor]], factor: float, dtype: torch.dtype) -> Iterator[bytes]:
    for values in make():
        yield (values * factor).to(dtype).contiguous().view(torch.uint8).numpy().tobytes()
