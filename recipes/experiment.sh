#!/bin/sh
# The first experiment: does untying a cancelling pair help? Trains every arm with every seed of a size, two runs at a
# time, and ends with a report. 6 layers are trained up to step AT, grown to 12 in several ways and trained on to step
# STEPS, and held against models that have 6 or 12 layers from the start. Arms that start from the same shallow model
# share it.
#
# Run:   sh recipes/experiment.sh SIZE [SET]   SIZE: wikitext2-cpu, cifar10-cpu, wikitext2-gpu, cifar10-gpu
#                                              SET: headline (default); defaults: one factor of a growth at a time;
#                                              rates: the learning rate of 12 layers from scratch
#        (PPDGROW_DATA=FOLDER with wikitext-2/ and cifar10/, else a download)
# Takes: a run of a cpu size at most 15 minutes on one core of an Intel Xeon, a set of them hours
# Again: what is done is skipped, what was stopped goes on: give the same line again after a kill.
# Set:   SEEDS, ARMS (names below), JOBS (default 2), OUT (default runs/SIZE-SET), STEPS, AT, REPORT
set -eu
cd "$(dirname "$0")/.."
. recipes/environment.sh

SIZE="${1:-}" SET="${2:-headline}"
RECIPE="recipes/$SIZE.yaml"
# SHARE is the cost of a step of 6 layers in thousandths of that of 12.
case "$SIZE" in
wikitext2-cpu) steps=1500 at=400 SHARE=520 WIDER="--width 256 -o model.heads=8" ;;
wikitext2-gpu) steps=10000 at=2700 SHARE=580 WIDER="--width 1024 -o model.heads=16" ;;
cifar10-cpu) steps=1500 at=400 SHARE=519 WIDER="--width 256 -o model.heads=8" ;;
cifar10-gpu) steps=30000 at=8100 SHARE=502 WIDER="--width 768 -o model.heads=12" ;;
*) echo "error: found size '$SIZE', expected wikitext2-cpu, wikitext2-gpu, cifar10-cpu or cifar10-gpu" >&2 && exit 2 ;;
esac
case "$SET" in
headline)
    seeds="0 1 2"
    arms="scratch-12 attention scratch-6 zero attention-first ffn copy scratch-12-residual fresh
        scratch-12-equal-flops reset-6 scratch-12-wide"
    ;;
defaults)
    seeds=100
    arms="reference at-10 at-50 at-80 moments-fresh moments-copy rate-0.5 rate-2 scale-0.3 scale-0.1 source-random
        many-late"
    ;;
rates) seeds=100 arms="lr-1e-3 lr-2e-3 lr-4e-3 lr-8e-3" ;;
*) echo "error: found set '$SET', expected headline, defaults or rates" >&2 && exit 2 ;;
esac
STEPS="${STEPS:-$steps}" AT="${AT:-$at}" SEEDS="${SEEDS:-$seeds}" ARMS="${ARMS:-$arms}"
JOBS="${JOBS:-2}" OUT="${OUT:-runs/$SIZE-$SET}"
export STEPS AT OUT
# One thread a run: they are timed side by side.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# scratch STEPS OPTIONS..: a model that has its depth from the start.
scratch() {
    budget="$1" && shift
    ppdgrow train --recipe "$RECIPE" --seed "$SEED" --steps "$budget" --out "$OUT/$ARM/seed-$SEED" "$@"
}

# shallow STEP [LAYERS]: sets $trunk to the shallow model up to a step, its rate not decayed by that.
shallow() {
    trunk="$OUT/shallow-${2:-6}-$1/seed-$SEED"
    ppdgrow train --recipe "$RECIPE" --seed "$SEED" --layers "${2:-6}" --steps "$1" --horizon "$STEPS" --out "$trunk"
}

# on FROM STEP OPTIONS..: from a model of that step to the end of the schedule.
on() {
    from="$1" budget="$((STEPS - $2))" && shift 2
    ppdgrow train "$from" --steps "$budget" --horizon "$STEPS" --out "$OUT/$ARM/seed-$SEED" "$@"
}

# grown OPTIONS..: 6 layers up to step AT, grown to 12 with these options of `ppdgrow grow`, and on.
grown() {
    grown_at "$AT" "$@"
}

grown_at() {
    step="$1" && shift
    shallow "$step"
    ppdgrow grow "$trunk" --pairs 3 --out "$OUT/$ARM-inserted/seed-$SEED" "$@"
    on "$OUT/$ARM-inserted/seed-$SEED" "$step" $RATE
}

# The arms: all commands of $ARM with $SEED.
arm() {
    RATE=""
    case "$ARM" in
    shallow-6) shallow "$AT" ;;
    scratch-12) scratch "$STEPS" --layers 12 ;;
    scratch-12-residual) scratch "$STEPS" --layers 12 -o model.stream=residual ;;
    scratch-12-wide) scratch "$STEPS" --layers 12 $WIDER ;;
    scratch-12-equal-flops) scratch "$((STEPS - AT + AT * SHARE / 1000))" --layers 12 ;;
    scratch-6) shallow "$AT" && on "$trunk" "$AT" ;;
    reset-6) shallow "$AT" && on "$trunk" "$AT" -o train.reset_optimizer=true ;;
    ffn | attention | attention-first) grown --pair "$ARM" ;;
    zero | fresh) grown --method "$ARM" ;;
    copy) grown --method copy --position end ;;

    lr-*) scratch "$STEPS" --layers 12 -o "train.lr=${ARM#lr-}" ;;
    reference) grown --pair attention ;;
    at-*) grown_at "$((STEPS * ${ARM#at-} / 100))" --pair attention ;;
    moments-*) grown --pair attention --moments "${ARM#moments-}" ;;
    rate-*) RATE="--pair-lr ${ARM#rate-}" && grown --pair attention ;;
    scale-*) grown --pair attention --scale "${ARM#scale-}" ;;
    source-random) grown --pair attention --source random ;;
    many-late)
        late="$((STEPS * 8 / 10))"
        shallow "$late" 2
        ppdgrow grow "$trunk" --pair attention --pairs 5 --out "$OUT/$ARM-inserted/seed-$SEED"
        on "$OUT/$ARM-inserted/seed-$SEED" "$late"
        ;;
    *) echo "error: found arm '$ARM', expected some of: $arms" >&2 && exit 2 ;;
    esac
}

if [ "${3:-}" = "--one" ]; then
    ARM="$4" SEED="$5" log="$OUT/logs/$4-seed-$5.log"
    if arm >>"$log" 2>&1; then
        echo "done: $ARM, seed $SEED" >&2
    else
        echo "failed: $ARM, seed $SEED; see $log" >&2 && exit 1
    fi
    exit 0
fi

# each ARM..: these arms with all seeds, JOBS at a time. A signal reaches all of them, and they save.
each() {
    mkdir -p "$OUT/logs"
    set -m
    for seed in $SEEDS; do
        for arm in "$@"; do echo "$arm $seed"; done
    done | xargs -P "$JOBS" -L 1 sh recipes/experiment.sh "$SIZE" "$SET" --one &
    pool=$!
    set +m
    trap 'kill -TERM -- "-$pool"; wait; exit 143' TERM
    trap 'kill -TERM -- "-$pool"; wait; exit 130' INT
    wait "$pool" || { echo "error: some runs failed; what is done is kept: repair, and give the same line again" >&2 && exit 1; }
    trap - INT TERM
}

[ "$SET" = rates ] || each shallow-6
each $ARMS
