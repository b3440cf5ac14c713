#!/usr/bin/env bash
# Try dist/*.whl in an environment that holds nothing else of testdg: scripts/try_wheel.sh PYTHON
# What the wheel needs is not installed a second time: the packages of PYTHON are put on the path by a .pth file, which
# leaves out an editable testdg that may be among them. `pip check` says whether the wheel's own requirements are met.
set -euo pipefail
python=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
wheel=$(realpath dist/testdg-*.whl)
"$python" -m venv "$place/venv"
bin=$place/venv/bin
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$bin/pip" install --quiet --no-deps --no-index "$wheel"
echo "$packages" >"$own/needed.pth"
cd "$place"
unset PYTHONPATH
home=$("$bin/python" -c 'import testdg; print(testdg.__file__)')
[[ $home == "$own"/* ]] || { echo "testdg comes from $home, not from the wheel"; exit 1; }
if "$bin/pip" check 2>/dev/null | grep '^testdg '; then exit 1; fi
"$bin/testdg" --version
"$bin/testdg" check-method tent
"$bin/testdg" run --method tent --images 20 >run.txt
"$bin/testdg" report runs --out report >report.txt
grep -q '^mean ' run.txt
[[ -s report/report.html ]]
echo "the wheel works"
