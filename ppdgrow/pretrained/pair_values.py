"""The first values of pairs: drawn as the model draws its own, or cut from the layer before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ppdgrow.errors import ConfigError, first_line
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.cut import axes_of, cut_tensor
from ppdgrow.pretrained.folder import quiet
from ppdgrow.pretrained.parent_model import ParentModel, input_width, is_transposed
from ppdgrow.pretrained.plain import DTYPES
from ppdgrow.pretrained.write import NewTensor
from ppdgrow.seeding import generator


class PairValues:
    """The first values of pairs, made when the first tensor of one is written; one pair is held at a time."""

    def __init__(self, parent: ParentModel, config: Mapping[str, Any], source: str, scale: float, seed: int) -> None:
        self.parent, self.source, self.scale, self.seed = parent, source, scale, seed
        facade = getattr(modeling, config["architectures"][0])
        try:
            with torch.device("meta"), quiet():
                self.model: Any = facade._from_config(modeling.PPDGrowConfig.from_dict(dict(config)))
        except ValueError as error:
            raise ConfigError(
                f"{str(parent.folder.path)!r}: half of a layer cannot be built ({first_line(error)}): use --pair ffn, "
                "or --method zero, copy or fresh"
            ) from None
        self.layers = self.model.base_model.get_submodule(config["pairs"]["layers"])
        self.pairs = config["pairs"]
        self.held: tuple[str, dict[str, Tensor]] = ("", {})

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
        """The new tensors of a pair, under the names that they have beside the parent's."""
        layer = modeling.layer_of(block)
        dtype = self.parent.dtype(layer)
        itemsize = DTYPES[dtype].itemsize
        for name, tensor in self._pair(block).state_dict().items():
            full = f"{self.parent.folder.layers}{layer}.pairs.{block['id']}.{name}"
            chunks = self._chunks(block, name, DTYPES[dtype])
            yield NewTensor(full, dtype, tuple(tensor.shape), tensor.numel() * itemsize, chunks)

    def _chunks(self, block: Mapping[str, Any], name: str, dtype: torch.dtype) -> Callable[[], Iterator[bytes]]:
        def chunks() -> Iterator[bytes]:
            if self.held[0] != block["id"]:
                self.held = ("", {})
                self.held = (block["id"], self.values(block))
            yield self.held[1][name].to(dtype).contiguous().view(torch.uint8).numpy().tobytes()

        return chunks

    @torch.no_grad()
    def values(self, block: Mapping[str, Any]) -> dict[str, Tensor]:
        """All tensors of a pair in fp32: drawn, then cut where the source is a slice; the second member mirrors."""
        pair = self._pair(block).to_empty(device="cpu").float()
        for parameter in pair.parameters():
            parameter.fill_(torch.nan)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(self.seed, "pair", int(block["id"][1:])).initial_seed())
            pair.apply(self.model._init_weights)
            pair.reset()
        if self.is_cut(block):
            for role, branch in (("f", pair.f_plus), ("g", pair.g_plus)):
                self._cut(branch, modeling.KINDS[block["kind"]]["fg".index(role)], modeling.layer_of(block), role)
            pair.reset()
        if isinstance(pair, modeling.CouplingPair):
            for branch in (pair.f_plus, pair.g_plus, pair.f_minus, pair.g_minus):
                for parameter in branch.output_projection().parameters():
                    parameter.mul_(self.scale)
        values = {name: tensor.detach().clone() for name, tensor in pair.state_dict().items()}
        pair.to("meta")
        for name, tensor in values.items():
            if tensor.isnan().any():
                raise ConfigError(f"{type(self.model).__name__} does not say how {name} is drawn: use --source slice")
        return values

    def is_cut(self, block: Mapping[str, Any]) -> bool:
        """Whether a pair's branches are cut from the layer: it is asked for, and the layer has such branches."""
        return self.source == "slice" and not {"attention", "mlp"}.isdisjoint(modeling.KINDS.get(block["kind"], ()))

    def _cut(self, branch: Any, part: str, layer: int, role: str) -> None:
        paths = dict(self.pairs["parts"][part])
        for name, parameter in branch.named_parameters():
            child, _, rest = name.partition(".")
            inside, _, kind = rest.rpartition(".")
            module = ".".join(filter(None, (paths[child], inside)))
            full = self.parent.tensor(layer, f"{module}.{kind}")
            is_norm = child == "norm"
            if full is None and is_norm:  # a first layer without a norm: the new one's gains are as drawn
                continue
            if full is None or not (is_norm or axes_of(self.parent.family, module) or full.shape == parameter.shape):
                raise ConfigError(
                    f"layer {layer + 1} of {str(self.parent.folder.path)!r}: how {module}.{kind} is cut in half is not "
                    "known: use --source random"
                )
            cut = cut_tensor(
                full,
                module,
                family=self.parent.family,
                role=role,
                sizes=self.parent.sizes,
                transposed=is_transposed(branch.get_submodule(name.rpartition(".")[0])),
                norm=is_norm,
            )
            if cut.shape != parameter.shape:
                raise ConfigError(
                    f"layer {layer + 1} of {str(self.parent.folder.path)!r}: {module}.{kind} cut in half has shape "
                    f"{list(cut.shape)}, expected {list(parameter.shape)}: use --source random"
                )
            parameter.copy_(cut)

    def in_words(self, blocks: Sequence[Mapping[str, Any]]) -> str:
        """Where the first weights come from."""
        cut = [block for block in blocks if self.is_cut(block)]
        drawn = [block["id"] for block in blocks if block not in cut]
        if not cut:
            return "drawn at random"
        from_layers = ", ".join(f"{block['id']} from layer {modeling.layer_of(block) + 1}" for block in cut)
        return f"sliced: {from_layers}" + (f"; drawn at random: {', '.join(drawn)}" if drawn else "")
