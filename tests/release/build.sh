#!/usr/bin/env bash
# Build what would be published, from the last commit: `make release` runs this.
#
# dist/ gets the sdist and the wheel; build/release/ the SBOM, the site of the docs, and the checksums of all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tools=$PWD/build/release-tools/bin
uv=$PWD/build/uv/bin/uv
git=(git -c 'safe.directory=*')
if [ -n "$("${git[@]}" status --porcelain)" ]; then
    echo "release: commit first: what is released is the last commit" >&2
    exit 1
fi
SOURCE_DATE_EPOCH=$("${git[@]}" log -1 --format=%ct)
export SOURCE_DATE_EPOCH

work=$PWD/build/release-work
rm -rf dist build/release "$work"
mkdir -p dist build/release "$work"

# Twice, in other folders: the second time not by way of the sdist, and with other settings of the machine.
"${git[@]}" clone --quiet . "$work/one"
"${git[@]}" clone --quiet . "$work/two"
(cd "$work/one" && "$tools/python" -m build --no-isolation --outdir "$OLDPWD/dist" >"$work/one.log")
(
    cd "$work/two" && umask 077
    TZ=Asia/Tokyo PYTHONHASHSEED=1 "$tools/python" -m build --no-isolation --sdist --wheel --outdir "$work/again" >"$work/two.log"
)
for built in dist/*; do
    cmp "$built" "$work/again/${built##*/}"
done
sdist=$(echo dist/*.tar.gz)
wheel=$(echo dist/*.whl)
name=${sdist##*/} && name=${name%.tar.gz}

"$tools/twine" check --strict "$sdist" "$wheel"
# Beside the second wheel's sources are the scripts that were composed for it.
"$tools/check-wheel-contents" --toplevel leasequeue,_leasequeue_pytest.py --src-dir "$work/two/src" "$wheel"

# What all extras install, in the releases that the tests run with.
grep -oE '^[^ ]+==[^\]+' requirements.lock >"$work/pins.txt"
extras=$(sed -n '/^# For users/,/^# For those/s/^\([a-z]*\) = \[.*/\1/p' pyproject.toml | paste -sd ,)
"$uv" venv --no-config --quiet --python "$tools/python" "$work/users"
"$uv" pip install --no-config --quiet --python "$work/users" --constraint "$work/pins.txt" "leasequeue[$extras] @ file://$PWD/$wheel"
"$tools/cyclonedx-py" environment --pyproject pyproject.toml --mc-type library --output-reproducible \
    --output-file "$work/python.cdx.json" "$work/users/bin/python"
"$tools/python" tests/release/sbom.py "$wheel" <"$work/python.cdx.json" >"build/release/$name.cdx.json"

tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -c -C site . |
    gzip -n >"build/release/$name-docs.tar.gz"
sha256sum dist/* build/release/* | sed 's|  .*/|  |' >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" build/release
cat build/release/SHA256SUMS
