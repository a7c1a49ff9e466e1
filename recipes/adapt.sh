#!/bin/sh
# Does adapting a model by new parts alone forget less than training all of it? A small Llama learns the standard
# library's sources, and then WikiText-2: by all its weights, by four attention pairs alone, or by two zeroed layers
# alone, which have as many parameters as the pairs; three seeds each, whose losses on both data sets are compared.
# Run: sh recipes/adapt.sh   (needs ppdgrow[hf]; goes on where it stopped; JOBS=1 for one run at a time)
set -eu
here=$(dirname "$0")
out=${OUT:-runs/adapt}
mkdir -p "$out"

[ -d "$out/llama" ] || python "$here/small_llama.py" "$out/llama"
ppdgrow train "$out/llama" --data stdlib --steps 1000 --lr 3e-3 --seed 0 --out "$out/stdlib"
if [ ! -d "$out/base" ]; then
    python -c 'import sys, transformers as t; t.AutoModelForCausalLM.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])' \
        "$out/stdlib/checkpoints/step-00001000" "$out/base.new"
    cp "$out/llama/tokenizer.json" "$out/llama/tokenizer_config.json" "$out/base.new"
    mv "$out/base.new" "$out/base"
fi
ppdgrow grow "$out/base" --pair attention --pairs 4 --out "$out/base-pairs"
ppdgrow grow "$out/base" --method zero --pairs 1 --out "$out/base-zero"

for seed in ${SEEDS:-0 1 2}; do
    echo "$out/base --lr ${LR_ALL:-1e-3} --seed $seed --out $out/all/seed-$seed"
    echo "$out/base-pairs --only pairs --lr ${LR_NEW:-3e-3} --seed $seed --out $out/pairs/seed-$seed"
    echo "$out/base-zero --only pairs --lr ${LR_NEW:-3e-3} --seed $seed --out $out/zero/seed-$seed"
done | xargs -P "${JOBS:-2}" -L 1 ppdgrow train --data wikitext2 --steps 400 -o train.eval_every=50 --quiet

ppdgrow compare "$out/base" "$out/all" "$out/pairs" "$out/zero" --on stdlib --report "$out/report.md" --plot "$out/report.svg"
