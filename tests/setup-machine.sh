#!/usr/bin/env bash
# Install the system programs that the given parts need. Quick and silent if they are installed.
#
#     tests/setup-machine.sh PART...
#
# Parts: make  venv  pythons  compiler  lint  servers  terminal  browser  node  java  postgres  prometheus  containers  kubernetes  rivals
set -euo pipefail

packages=()

need() { # need PROGRAM PACKAGE...: install the packages if the program is missing
    command -v "$1" >/dev/null 2>&1 || packages+=("${@:2}")
}

for part in "$@"; do
    case "$part" in
    make) need make make; need git git ;;
    venv) "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv) ;;
    compiler) # of the clock that the soak can set
        need cc gcc
        [ -e /usr/include/time.h ] || packages+=(libc6-dev)
        ;;
    pythons) need patchelf patchelf ;; # for tests/find-python.sh
    lint) need luacheck lua-check && need luac5.1 lua5.1 ;;
    servers) # not by the caller's PATH: a virtual environment may hold an older redis-server
        PATH=/usr/bin:/usr/local/bin:/opt/homebrew/bin need redis-server redis-server
        need ps procps
        ;;
    terminal) need tmux tmux ;; # for the tests of `leasequeue top`
    browser) need chromium chromium ;; # for tests/browser
    java) need java openjdk-17-jre-headless ;;
    postgres) # Debian keeps its programs off the PATH
        PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin) need initdb postgresql
        ;;
    prometheus) need promtool prometheus ;;
    kubernetes) # to run an API server, and to build it: tests/autoscale/build-kube-apiserver.sh
        need etcd etcd-server
        need go golang-go && need rsync rsync && need make make
        ;;
    rivals) PATH=$PATH:/usr/sbin need nats-server nats-server && need beanstalkd beanstalkd ;;
    node) need node nodejs && need npm npm ;;
    containers)
        docker info >/dev/null 2>&1 || need podman podman runc containernetworking-plugins iptables
        ;;
    *) echo "setup-machine: unknown part $part" >&2 && exit 2 ;;
    esac
done
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup-machine: please install what Debian calls: ${packages[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [ ! -t 0 ]; }; then
        echo "setup-machine: please run as root: apt-get install ${packages[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

# Of a server, only the program is needed: start no service during the installation.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin $policy
    trap '"${as_root[@]}" rm -f $policy' EXIT
fi

echo "Installing ${packages[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install --yes --no-install-recommends "${packages[@]}" >/dev/null </dev/null
for service in redis-server etcd nats-server beanstalkd postgresql prometheus prometheus-node-exporter; do
    if [[ " ${packages[*]/etcd-server/etcd} " == *" $service "* ]] && [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl --quiet disable $service
    fi
done
