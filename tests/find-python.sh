#!/usr/bin/env bash
# Print the path of a Python: that on the PATH, or pyenv's, or else Debian's, which is unpacked into build/.
#
#     tests/find-python.sh VERSION        as 3.14
#
# Debian 12 itself has Python 3.11 alone. Newer ones are in Debian's later suites, whose C library they need: they
# get it beside them, and nothing of the machine is changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$1
unpacked=$PWD/build/debian/python$version
shopt -s nullglob
for python in "python$version" ~/.pyenv/versions/"$version".*/bin/python3 "$unpacked/usr/bin/python$version"; do
    found=$(command -v "$python") || continue
    # pyenv puts a program of each name onto the PATH, which refuses to run if its version is not chosen.
    "$found" -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$version'.split('.'))))" 2>/dev/null || continue
    echo "$found"
    exit
done

missing() {
    echo "find-python: no Python $version: $1. Install it, for example with pyenv" >&2
    exit 1
}
command -v apt-get >/dev/null || missing "it is not on the PATH"
tests/setup-machine.sh pythons >&2
source /etc/os-release
# Of the machine's sources, that of Debian itself.
read -r mirror < <(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="${VERSION_CODENAME:-}" '$2 == release && $3 == "main" { print $1; exit }') ||
    missing "apt has no source of Debian"

# With folders of its own, apt leaves those of the machine alone. An empty state means that nothing is installed.
apt=$unpacked.apt
rm -rf "$apt" "$unpacked"
mkdir -p "$apt"/{sources,state/lists/partial,cache/archives/partial}
touch "$apt/state/status"
options=(
    -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources" -o Dir::Etc::preferencesparts=/dev/null
    -o Dir::State="$apt/state" -o Dir::State::status="$apt/state/status" -o Dir::Cache="$apt/cache"
    -o APT::Sandbox::User= -o APT::Install-Recommends=false
)
for suite in stable testing unstable; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$apt/sources/debian.list"
    apt-get "${options[@]}" update >&2
    if apt-cache "${options[@]}" show "python$version-venv" >/dev/null 2>&1; then
        echo "Unpacking Python $version of Debian $suite" >&2
        apt-get "${options[@]}" install --yes --download-only "python$version-venv" >/dev/null
        break
    fi
done
packages=("$apt"/cache/archives/*.deb)
[ ${#packages[@]} -gt 0 ] || missing "Debian has it no more, or not yet"
for package in "${packages[@]}"; do
    dpkg -x "$package" "$unpacked"
done
rm -rf "$apt"

python=$unpacked/usr/bin/python$version
loader=$(find "$unpacked/usr/lib" -type f -name 'ld-linux-*')
# RPATH, not RUNPATH, which the modules of the standard library would not inherit.
patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$(dirname "$(find "$unpacked" -name libc.so.6)")" "$python"
# Where `python -m venv` finds pip.
sed -i "s|/usr/share/python-wheels|$unpacked&|" "$unpacked"/usr/lib/python"$version"/_sysconfig*
"$python" -c 'import ctypes, lzma, sqlite3, ssl, zlib'
echo "$python"
