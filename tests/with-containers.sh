#!/usr/bin/env bash
# Run a command with a container engine for testcontainers, and an image of a Redis server to test with.
#
#     tests/with-containers.sh COMMAND...
#
# If docker answers, it is used. Otherwise podman serves on a private socket while the command runs, with its images
# in a private folder; the image is made of this machine's redis-server, so that no registry is needed. The name of
# the image is in LEASEQUEUE_TEST_IMAGE.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

if docker info >/dev/null 2>&1; then
    LEASEQUEUE_TEST_IMAGE=${LEASEQUEUE_TEST_IMAGE:-redis:7} exec "$@"
fi

"$here/setup-machine.sh" containers servers
work=$(mktemp --directory)
service=
finish() {
    [ -z "$service" ] || { kill "$service" && wait "$service"; } 2>/dev/null || true
    umount "$work/storage/overlay" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

# crun needs cgroups that many sandboxes lack; runc does not. Any root user may set these limits.
cat >"$work/containers.conf" <<TOML
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=10000:10000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
TOML
cat >"$work/storage.conf" <<TOML
[storage]
driver = "overlay"
graphroot = "$work/storage"
runroot = "$work/run"
TOML
export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf

# The image holds the server and the libraries that it loads, nothing else.
mkdir -p "$work/image/rootfs/usr/bin" "$work/image/rootfs/tmp"
cp --dereference /usr/bin/redis-server "$work/image/rootfs/usr/bin/"
ldd /usr/bin/redis-server | grep --only-matching '/[^ ]*' | while read -r library; do
    mkdir -p "$work/image/rootfs$(dirname "$library")"
    cp --dereference "$library" "$work/image/rootfs$library"
done
cat >"$work/image/Dockerfile" <<'DOCKERFILE'
FROM scratch
COPY rootfs/ /
EXPOSE 6379
ENTRYPOINT ["/usr/bin/redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]
DOCKERFILE
export LEASEQUEUE_TEST_IMAGE=localhost/leasequeue-redis:7
podman build --quiet --isolation chroot --tag "$LEASEQUEUE_TEST_IMAGE" "$work/image" >/dev/null

podman --log-level error system service --time=0 "unix://$work/podman.sock" &
service=$!
for _ in $(seq 100); do
    [ ! -S "$work/podman.sock" ] || break
    sleep 0.1
done
export DOCKER_HOST=unix://$work/podman.sock TESTCONTAINERS_RYUK_DISABLED=true
export TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 TESTCONTAINERS_CONNECTION_MODE=docker_host
"$@"
