"""A folder of Transformers as the checkpoint from which training goes on: its head, its tokenizer, its layers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint.format import TOKENIZER
from ppdgrow.checkpoint.safe_read import invalid, plain_file
from ppdgrow.config.architecture import OWN_KEY, BlockSpec, PretrainedArchitecture, TokenInput
from ppdgrow.config.kinds import Task
from ppdgrow.errors import ConfigError
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.deeper_config import lineage_of
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder, read_folder, reading
from ppdgrow.pretrained.language_model import (
    LanguageModel,
    build_language_model,
    class_names,
    forward_flops,
    model_class,
)
from ppdgrow.pretrained.library import AUTO_CLASSES, quiet
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import known_pairs
from ppdgrow.pretrained.plain import DTYPES
from ppdgrow.pretrained.skeleton import layer_list
from ppdgrow.pretrained.write import CARD, CODE, PARENT_CARD, carried_over

TYPES = ("dtype", "torch_dtype")  # what configs call the type in which a model is loaded
MOST_NAMED = 6  # in a note
LONGEST = 512  # tokens of a sequence where neither model nor recipe limit it; the FLOPs are counted anew for a run


@dataclass(frozen=True)
class PretrainedModel:
    """A folder that training starts from.

    `tensors` are in the types in which they are stored, by the names that Transformers has for them; `files` belong to
    the model and go along, by name; `digest` is that of config.json and the weights.
    """

    folder: PretrainedFolder
    architecture: PretrainedArchitecture
    tensors: dict[str, Tensor]
    tokenizer: str
    files: Mapping[str, bytes]
    digest: str
    notes: tuple[str, ...]

    @property
    def stored(self) -> torch.dtype:
        """The type of the first tensor."""
        return next(tensor.dtype for tensor in self.tensors.values())


def read_pretrained(path: Path, task: Task | None = None) -> PretrainedModel:
    """Read a folder with its weights, for the task of its head or, if it has none for text, for `task`.

    Raises:
        InvalidInputError: the folder is damaged, or of a sort that ppdgrow does not read.
        ConfigError: it has no head of a task, or no tokenizer.
    """
    folder = read_folder(path)
    task = _task(folder, task)
    tokenizer = _tokenizer(folder.path)
    types = {name: DTYPES[entry.dtype] for name, entry in folder.entries.items() if entry.dtype in DTYPES}
    widest = reduce(torch.promote_types, types.values())  # each type goes into it and back without a change
    with quiet():
        model, found = load_pretrained(folder.path, AUTO_CLASSES[task], dtype=widest, output_loading_info=True)
    config = _config(folder, task)
    prefix, _ = layer_list(model, folder.num_layers, folder)
    loaded = getattr(model.config, "parent", lambda: model.config)()
    longest = _longest(model, loaded)
    blocks = tuple(_blocks(folder))
    architecture = PretrainedArchitecture(
        task=task,
        width=loaded.hidden_size,
        input=TokenInput(vocabulary_size=loaded.vocab_size, sequence_length=longest or LONGEST),
        longest=longest,
        blocks=blocks,
        config=config,
        layers_prefix=f"{prefix}.",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        forward_flops=1,
        newest=tuple(_newest(folder, blocks)),
    )
    state = LanguageModel(architecture, model).state_dict()
    drawn = tuple(sorted(found["missing_keys"] & state.keys()))
    tensors = {
        name: tensor.to(_stored_type(name, types, model.base_model_prefix, widest))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in state.items()
        if name not in drawn
    }
    files, left = _files(folder)
    head = AUTO_CLASSES[task].removeprefix("AutoModelFor")
    notes = [f"the new {head} head is drawn: {_modules(drawn)}"] if drawn else []
    unused = (_modules(found["unexpected_keys"]), _first(left))
    for what, names in zip(("weights", "files"), unused, strict=True):
        notes += [f"not taken along, since training has no use for them: the {what} {names}"] if names else []
    architecture = architecture.model_copy(update={"drawn": drawn})
    return PretrainedModel(folder, architecture, tensors, tokenizer, files, folder.digest(), tuple(notes))


def for_training(
    architecture: PretrainedArchitecture, tensors: Mapping[str, Tensor], *, length: int, seed: int
) -> tuple[PretrainedArchitecture, dict[str, Tensor]]:
    """The architecture for sequences of `length` tokens, and all tensors, those that the folder lacked drawn."""
    flops = forward_flops(architecture.config, architecture.task, length)
    inputs = TokenInput(vocabulary_size=architecture.input.vocabulary_size, sequence_length=length)
    ready = architecture.model_copy(update={"input": inputs, "forward_flops": flops})
    if not set(architecture.drawn) - tensors.keys():
        return ready, dict(tensors)
    model = build_language_model(architecture, tensors, torch.device("cpu"), seed)
    drawn = {name: tensor for name, tensor in model.state_dict().items() if name not in tensors}
    return ready, {**tensors, **drawn}


def _longest(model: nn.Module, config: Any) -> int | None:
    """The most positions that a model takes; some families count theirs from behind the id of the padding."""
    longest = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            longest = module.num_embeddings - module.padding_idx - 1
    return longest if isinstance(longest, int) and longest > 0 else None


def _modules(names: Iterable[str]) -> str:
    """The modules that some parameters belong to, the first of them by name."""
    return _first(sorted({name.rpartition(".")[0] or name for name in names}))


def _first(names: Sequence[str]) -> str:
    """Some names, the first of many."""
    return ", ".join([*names[:MOST_NAMED], *(["..."] if len(names) > MOST_NAMED else [])])


def _task(folder: PretrainedFolder, asked: Task | None) -> Task:
    """That of the head; of a model without one, or with one that is not for text, what is asked for."""
    heads = folder.parent_config.get("architectures") or ()
    tasks = [task for task in AUTO_CLASSES if set(heads) & set(class_names(folder.model_type, task))]
    if "lm" in tasks and class_names(folder.model_type, "mlm") and not folder.parent_config.get("is_decoder"):
        tasks.remove("lm")
        if not tasks:
            raise ConfigError(
                f"{str(folder.path / CONFIG)!r}: a {next(iter(heads))} without is_decoder sees the tokens that it is "
                "to predict: set is_decoder to true, if it was trained so"
            )
    if tasks:
        return tasks[0]
    possible = [task for task in ("mlm", "lm") if class_names(folder.model_type, task)]  # encoders are not causal
    where = f"{str(folder.path)!r} is a {heads[0] if heads else folder.model_type}"
    if not possible:
        raise ConfigError(f"{where}, and training takes language models alone: lm or mlm")
    if asked is None:
        raise ConfigError(
            f"{where}, not a model for {' or '.join(AUTO_CLASSES)}: add -o model.task={possible[0]} to train it as "
            "one; what it lacks of that head is drawn"
        )
    if asked != possible[0]:
        raise ConfigError(f"{where}, which cannot be trained for the task {asked}: expected {possible[0]}")
    return possible[0]


def _config(folder: PretrainedFolder, task: Task) -> dict[str, Any]:
    """config.json for the class that is trained, and for weights as they are trained, in fp32."""
    made, _ = model_class(folder.config, task)
    if not folder.has_pairs:
        own = {key: value for key, value in folder.config.items() if key not in (OWN_KEY, *TYPES)}
        lineage = lineage_of(folder.config)
        own |= {OWN_KEY: {"lineage": lineage}} if lineage else {}
        return {**own, "architectures": [made.__name__], TYPES[0]: "float32"}
    base = {key: value for key, value in folder.config["base"].items() if key not in TYPES}
    base |= {"architectures": [made.parent_class.__name__], TYPES[0]: "float32"}
    grown: dict[str, Any] = modeling.grown_dict(folder.model_type, base, folder.config["pairs"])
    return grown


def _blocks(folder: PretrainedFolder) -> Iterator[BlockSpec]:
    """Layers and pairs in the order in which they run."""
    pairs = known_pairs(folder)
    for number in range(folder.num_layers + 1):
        if number:
            yield BlockSpec(id=f"l{number}", type="layer", kind="attention")
        for pair in pairs:
            if pair["after"] == number:
                yield BlockSpec(id=pair["id"], type="pair", kind=pair["kind"], state="untied")


def _newest(folder: PretrainedFolder, blocks: tuple[BlockSpec, ...]) -> Iterator[str]:
    """Ids of what was grown since the model was trained last, by the lineage in its config."""
    grown: set[str] = set()
    for entry in lineage_of(folder.config["base"] if folder.has_pairs else folder.config):
        grown = set() if entry.get("parent_trained") else grown
        grown |= {f"l{number + 1}" for number in entry["new_layers"]} | set(entry.get("ids", ()))
    yield from (block.id for block in blocks if block.id in grown)


def _tokenizer(path: Path) -> str:
    if not (path / TOKENIZER).is_file():
        raise ConfigError(
            f"{str(path)!r} has no {TOKENIZER}, which training reads text by: write one with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    with reading(path):
        try:
            return plain_file(path, TOKENIZER).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise invalid(path / TOKENIZER, "not UTF-8 text") from None


def _files(folder: PretrainedFolder) -> tuple[dict[str, bytes], list[str]]:
    """What belongs to the model beside config, weights and tokenizer.json, for pairs their code; and what is left."""
    with reading(folder.path):
        files, left = carried_over(folder.path)
        if (card := folder.path / CARD).is_file():
            files = {PARENT_CARD: card, **files}
        run = RunFolder(folder.path)
        apart = (TOKENIZER, run.growth_path.name, run.metrics_path.name)  # a run has records of its own
        found = {name: path.read_bytes() for name, path in files.items() if "/" not in name and name not in apart}
    if folder.has_pairs:
        found[CODE] = Path(modeling.__file__).read_bytes()
    return found, [*left, *sorted({f"{name.partition('/')[0]}/" for name in files if "/" in name})]


def _stored_type(name: str, types: Mapping[str, torch.dtype], base: str, otherwise: torch.dtype) -> torch.dtype:
    """That of a parameter on the disk, where a file of the base model alone lacks the prefix `base` of its names."""
    names = (name, name.removeprefix(f"{base}."), f"{base}.{name}")
    return next((types[each] for each in names if each in types), otherwise)


def tokenizer_digest(text: str) -> str:
    """sha256 of what decides the ids of a tokenizer: not how its file is laid out, nor how it cuts and pads texts."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        decisive = {key: value for key, value in document.items() if key not in ("version", "truncation", "padding")}
        text = json.dumps(decisive, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
