#!/usr/bin/env bash
# Build the API server of Kubernetes from the distribution's source package, which has no binary of it.
#
#     tests/autoscale/build-kube-apiserver.sh FOLDER
#
# FOLDER/kube-apiserver is the program. It needs go, rsync and 3 GB of disk, and takes 7 minutes on one core.
set -euo pipefail
folder=$(realpath -m "$1")
[ ! -x "$folder/kube-apiserver" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "build-kube-apiserver: please put a kube-apiserver into $folder" >&2
    exit 1
fi
work=$folder/work
rm -rf "$work"
mkdir -p "$work/lists/partial"

# The mirror and the release that this machine uses, for sources, without a change to its configuration.
apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    awk '$2 !~ /-/ && $3 == "main" && !seen[$1 $2]++ { print "deb-src", $1, $2, $3 }' >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User="$(id -un)")
"${apt[@]}" update
(cd "$work" && "${apt[@]}" source --download-only kubernetes)
mkdir "$work/source"
tar --extract --file "$work"/kubernetes_*.orig.tar.* --strip-components 1 --directory "$work/source"

cd "$work/source"
mkdir -p .go/src/k8s.io
ln -s ../../.. .go/src/k8s.io/kubernetes
env CGO_ENABLED=0 GOPATH="$PWD/.go" GOCACHE="$work/cache" GOFLAGS="${GOFLAGS:-}" HOME="$work" \
    make WHAT=cmd/kube-apiserver >"$folder/build.log" 2>&1 || {
    tail -20 "$folder/build.log" >&2
    exit 1
}
cp -L _output/bin/kube-apiserver "$folder/kube-apiserver"
chmod -R u+w "$work"
rm -rf "$work"
