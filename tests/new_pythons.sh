#!/usr/bin/env bash
# Run tests under Python 3.14 and 3.15, from a Debian sid that debootstrap makes where this machine has neither.
# usage: tests/new_pythons.sh PYTEST_ARGUMENT…   (as root; the root of sid is kept in /var/tmp for the next time)
set -euo pipefail
cd "$(dirname "$0")/.."
root=${BISECT_ENV_SID:-/var/tmp/bisect-env-sid}
packages=python3.14,python3.14-venv,python3.15,python3.15-venv,python3.15-dev,gcc,libc6-dev,make,git,procps,gdb,ca-certificates

if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include="$packages" sid "$root" >/dev/null
    touch "$root/complete"
fi
rm -rf "$root/src"
mkdir -p "$root/src" "$root/root/.config"
git ls-files --cached --others --exclude-standard -z | tar --null --create --files-from=- | tar --extract --directory "$root/src"
# How this machine reaches the package index.
for path in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt "$HOME/.config/pip" "$HOME/.config/uv"; do
    if [ -e "$path" ]; then mkdir -p "$root$(dirname "$path")" && cp -rL "$path" "$root$(dirname "$path")"; fi
done

inside=$(cat <<'INSIDE'
set -euo pipefail
root=$1; shift
# Only this process and its children see these mounts.
for place in proc dev sys; do mount --rbind "/$place" "$root/$place"; done
for python in 3.14 3.15; do
    # Sockets of tests need short paths, and pyenv's folders are not there.
    chroot "$root" env -u PYENV_ROOT -u VIRTUAL_ENV -u PYTHONDONTWRITEBYTECODE HOME=/root \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -euc '
        cd /src; python=$1; shift
        make --silent setup PYTHON="python$python" VENV="/opt/v$python"
        "/opt/v$python/bin/python" --version
        "/opt/v$python/bin/python" -m pytest -q -n 2 --dist worksteal "$@"' setup "$python" "$@"
done
INSIDE
)
exec unshare --mount --propagation private bash -c "$inside" new-pythons "$root" "$@"
