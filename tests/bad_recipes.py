"""Options of `train` that are refused: the exit code, and what the one line says."""

from __future__ import annotations

BAD_TRAINING = [
    ("--layers 6 -o trian.lr=3e-4", 2, "unknown recipe key 'trian.lr' (did you mean 'train.lr'?)"),
    ("-o train.lr=fast", 2, "train.lr"),
    ("-o train.lr=nan", 2, "train.lr"),
    ("-o train.steps=ten", 2, "train.steps"),
    ("-o train.steps", 2, "="),
    ("--width 15", 2, "use an even width, such as 16"),
    ("--width 16 -o model.heads=3", 2, "choose heads that divide 8"),
    ("--layers 0", 2, "model.layers"),
    ("--data wikitext", 2, "did you mean 'wikitext2'?"),
    ("--data wikitext2 --data-dir gone", 4, "gone"),
    ("--data wikitext2 --data-dir .", 4, "wikitext-2"),
    ("--data cifar10 --data-dir .", 4, "cifar10"),
    ("--data cifar10 -o model.task=lm", 2, "classify"),
    ("-o model.task=classify", 2, "lm"),
    ("--recipe gone.yaml", 2, "gone.yaml"),
    ("gone", 4, "does not exist"),
    ("--only pairs", 2, "has no grown blocks yet"),
    ("--steps 10 --horizon 5", 2, "at least 10"),
    ("--model mlp", 2, "model.family"),
    ("--bogus", 2, "no such option"),
    ("-o data.tokenizer=bpe:3", 2, "data.tokenizer"),
    ("--clip-norm 2", 2, "no such option: --clip-norm; it is a recipe key: give -o train.clip_norm=VALUE"),
    ("--no-augment", 2, "give -o data.augment=false"),
    ("--layers 6.5", 2, "model.layers: found 6.5, expected a whole number of at least 1 and at most 4096"),
    ("--steps [1", 2, "train.steps: found '[1', expected a whole number"),
    ("--out .", 2, "is the current folder"),
]
