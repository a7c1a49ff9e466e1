#!/bin/sh
# The growths of progressive.yaml as a loop of single commands, each with its own log and its own folder: train, grow,
# train the trial and its twin, compare --accept, go on from what is kept. The decisions, and the weights, are those
# of the one command `ppdgrow train --recipe recipes/progressive.yaml`. The last train prints the command of the ungrown
# control, which tells whether growing paid.
#
# Run:   sh recipes/progressive.sh           (PPDGROW_DATA=FOLDER with wikitext-2/, else a download)
# Takes: as long as the one command, and a little for reading and writing
# Again: finished steps are not run again; a stopped one goes on where it stopped.
# Set:   OUT (default runs/progressive-steps), RECIPE, STEPS in all, OPTIONS for the first train, and ROUNDS: for each
#        growth a line AT|BUDGET|RULE|FACTOR|RETRIES|GROW OPTIONS
set -eu
cd "$(dirname "$0")/.."
. recipes/environment.sh

OUT="${OUT:-runs/progressive-steps}"
RECIPE="${RECIPE:-recipes/progressive.yaml}"
STEPS="${STEPS:-1500}"
OPTIONS="${OPTIONS:-}"
ROUNDS="${ROUNDS:-
300|100|--rule twin --margin 0.02|1.0|0|--pair attention --scale 0.3
450|20|--rule parent|0.3|1|--method fresh --position end --scale 10.0
500|100|--rule twin --margin 0.02|1.0|0|--pair attention --scale 0.3
800|100|--rule twin --margin 0.02|1.0|0|--pair attention --scale 0.3
}"
step=0 current="" factor=1.0

# train FROM STEPS NAME FACTOR: FROM empty is a new model. --horizon makes all parts one schedule.
train() {
    if [ -n "$1" ]; then
        ppdgrow train "$1" --steps "$2" --horizon "$STEPS" --pair-lr "$4" --out "$OUT/$3"
    else
        ppdgrow train --recipe "$RECIPE" -o "growth=[]" $OPTIONS --steps "$2" --horizon "$STEPS" --out "$OUT/$3"
    fi
}

while IFS='|' read -r at budget rule lower retries growth; do
    [ -n "$at" ] || continue
    if [ "$at" -gt "$step" ]; then
        train "$current" "$((at - step))" "$at" "$factor"
        current="$OUT/$at"
    fi
    twin="$OUT/$at-twin" grown="$OUT/$at-grown" rate=1.0 attempt=1
    train "$current" "$budget" "$at-twin" "$factor"
    ppdgrow grow "$current" $growth --out "$grown"
    # Rejected, the run goes on from PARENT. The twin is PARENT, trained on by the next steps: they are done already.
    kept="$twin"
    while :; do
        trial="$OUT/$at-trial-$attempt" code=0
        train "$grown" "$budget" "$at-trial-$attempt" "$rate"
        ppdgrow compare "$current" "$trial" --accept --twin "$twin" $rule || code=$?
        case "$code" in
        0) kept="$trial" factor="$rate" && break ;;
        3) [ "$attempt" -le "$retries" ] || break ;;
        *) exit "$code" ;;
        esac
        attempt="$((attempt + 1))" rate="$(awk "BEGIN { print $rate * $lower }")"
    done
    current="$kept" step="$((at + budget))"
    echo "step $at: going on from $current" >&2
done <<END
$ROUNDS
END
train "$current" "$((STEPS - step))" final "$factor"
