#!/usr/bin/env bash
# Try dist/*.whl in an environment without another testdg: scripts/try_wheel.sh PYTHON
# Dependencies are not installed again: a .pth file puts the packages of PYTHON on the path, without an editable testdg
# among them. `pip check` checks the requirements of the wheel.
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
