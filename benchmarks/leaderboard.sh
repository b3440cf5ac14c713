#!/bin/sh
# The leaderboard of CIFAR10-C/112 in parts, the most telling first; each goes on where it was stopped.
# Run in a folder that has `data` and the model `vit-small-cifar10` (docs/results.md): sh leaderboard.sh PART [options],
# as in `timeout -s INT 570 sh leaderboard.sh tune-1`. To move on to another machine, take `tuned.toml`, `leaderboard` and
# `runs` along; of runs, config.toml, result.json and events.jsonl are enough: tar --exclude state -czf runs.tgz runs
#
#   part      rows x steps            side by side at 100 steps a second
#   tune-1    10 x 9,600 =  96,000    16 min
#   tune-2    10 x 9,600 =  96,000    16 min
#   tune-3     7 x 9,600 =  67,000    11 min
#   tune-4     7 x 9,600 =  67,000    11 min, and more where ten and more views are passed
#   table     34 x 8,655 = 294,000    49 min, stream by stream
#   best       8 x 2 x 8,655 + 8 x 3 x 3,750 = 228,000    38 min, then the cost of each, alone
#
# Two more are for the BatchNorm network of docs/leaderboard.md (`resnet20_cifar10.safetensors`), on two cores without a
# GPU, in a folder of their own: their files have the same names. Before them,
# `testdg corrupt --data data --out data --images 2500` makes the corruptions.
#
#   resnet-tune    the same six learning rates for all methods, 2,000 images a domain; about an hour
#   resnet-table   the choice on all streams, 500 images a domain; 23 min
set -e
part=$1
shift
common="--benchmark cifar10-c --data data --model vit-small-cifar10 --device cuda --precision bf16 --jobs 12"
tune="exec testdg tune $common --write tuned.toml"
board="exec testdg leaderboard $common --tuned tuned.toml"
resnet="--benchmark cifar10-c --data data --model resnet20_cifar10.safetensors --device cpu --jobs 2"
rows="tent eata align testdg_aligned roid deyo rotta cmf sar tent:come neo t3a testdg actmad"
# TestDG aligned records its steps
! grep -qs "^\[rows\.testdg_aligned\]" tuned.toml || board="$board --set testdg_aligned.cuda_graphs=true"
case $part in
tune-1) $tune testdg_aligned align tent sar eata roid rem deyo neo t3a --set testdg_aligned.cuda_graphs=true "$@" ;;
tune-2) $tune tent:come sar:come eata:come roid:uncorrected cmf cmf:uncorrected foa actmad testdg testdg:released "$@" ;;
tune-3) $tune dpcore versatile versatile:all rotta obao pseudo_label testdg:warm "$@" ;;
tune-4) $tune becotta vdp ecotta dept vida continual_mae cotta "$@" ;;
table) $board --best 0 --no-cost "$@" ;;
best) $board --best 8 --seeds 0,1,2 "$@" ;;
resnet-tune) exec testdg tune $resnet --images 2000 --rates 1e-4,3e-4,1e-3,3e-3,1e-2,3e-2 --write tuned.toml $rows \
    --csv tuning.csv "$@" ;;
resnet-table) exec testdg leaderboard $resnet --images 500 --tuned tuned.toml --best 0 --no-cost $rows "$@" ;;
*) echo "parts: tune-1 tune-2 tune-3 tune-4 table best resnet-tune resnet-table" >&2; exit 2 ;;
esac
