#!/bin/sh
# The two leaderboards of docs/leaderboard.md: sh leaderboard.sh PART [options], in a folder that has `data` (CIFAR-10 and
# its frost photographs) and the model. A part that was stopped continues where it stopped.
#
#   vit-tune       settings for the vision transformer `vit-small-cifar10`; 7 minutes on an H200 with a CUDA MPS daemon
#   vit-table      all streams, one seed: 12 minutes; FOA alone takes as long
#   vit-seeds      our methods with two more seeds: 4 minutes
#   resnet-tune    settings for `resnet20_cifar10.safetensors`; about an hour on two cores
#   resnet-table   all streams, 500 images a domain; half an hour
#
# Corruptions are made once: `testdg corrupt --data data --out data --images 2000 --jobs 12` (2500 for the ResNet).
set -e
part=$1
shift
vit="--benchmark cifar10-c --data data --model vit-small-cifar10 --device cuda --precision bf16 --jobs 14"
resnet="--benchmark cifar10-c --data data --model resnet20_cifar10.safetensors --device cpu --jobs 2"
affine="tent eata roid cmf sar deyo tent:come eata:come sar:come"
streams="continual,another order,dirichlet,three rounds,gradual,batches of 10,single images"
bunches="dirichlet 1,dirichlet 0.01,sorted,dirichlet batches of 10"
case $part in
vit-tune) exec testdg tune $vit --images 2000 --rates 3e-5,1e-4,3e-4,1e-3,3e-3 --widen 2 --write vit.toml \
    $affine rem actmad neo foa align testdg testdg_aligned --set testdg_aligned.cuda_graphs=true "$@" ;;
vit-table) exec testdg leaderboard $vit --tuned vit.toml --best 0 --no-cost --streams "$streams,$bunches" "$@" ;;
vit-seeds) for seed in 1 2; do
        testdg leaderboard $vit --tuned vit.toml --best 0 --no-cost --streams "$streams,$bunches" --seeds $seed \
            --report "leaderboard-$seed" testdg_aligned "$@"
    done ;;
resnet-tune) exec testdg tune $resnet --images 2000 --rates 1e-4,3e-4,1e-3,3e-3,1e-2,3e-2 --write resnet20.toml \
    tent eata roid cmf sar deyo tent:come rotta neo t3a actmad testdg align testdg_aligned "$@" ;;
resnet-table) exec testdg leaderboard $resnet --images 500 --tuned resnet20.toml --best 0 --no-cost \
    --streams "$streams,$bunches" "$@" ;;
*) echo "parts: vit-tune vit-table vit-seeds resnet-tune resnet-table" >&2; exit 2 ;;
esac
