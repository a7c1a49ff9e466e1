#!/bin/sh
# Insertion on real data: 6 layers grown to 12 by each kind of pair, in each stream and precision; the loss before
# and after must be one number. Trains on, and shows what the pairs do then.
#
# Run:   sh recipes/insertion.sh             (PPDGROW_DATA=FOLDER with wikitext-2/ and cifar10/, else a download)
# Takes: long: its WikiText-2 half took 56 minutes with one thread on a busy Intel Xeon
# Set:   STEPS per phase (default 200), OUT (default runs/insertion), STREAMS, PRECISIONS, KINDS, RECIPES
set -eu
cd "$(dirname "$0")/.."
. recipes/environment.sh

STEPS="${STEPS:-200}"
OUT="${OUT:-runs/insertion}"
for recipe in ${RECIPES:-wikitext2 cifar10}; do
    for precision in ${PRECISIONS:-fp32 bf16}; do
        for stream in ${STREAMS:-coupled residual}; do
            shallow="$OUT/$recipe-$stream-$precision"
            ppdgrow train --layers 6 --recipe "recipes/$recipe.yaml" -o "model.stream=$stream" \
                --precision "$precision" --steps "$STEPS" --no-decay --out "$shallow"
            for kind in ${KINDS:-ffn attention}; do
                ppdgrow grow "$shallow" --pair "$kind" --pairs 3 --out "$shallow-$kind"
                ppdgrow train "$shallow-$kind" --steps "$STEPS" --out "$shallow-$kind-trained"
                ppdgrow probe "$shallow-$kind-trained"
            done
        done
    done
done
