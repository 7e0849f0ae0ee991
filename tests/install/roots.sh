#!/usr/bin/env bash
# Try the wheels on empty systems: debootstrap makes each, with Python alone, and try.sh runs in it. Needs root.
#   roots.sh WHEELS FOLDER [SUITE...]
# SUITE: bookworm and trixie of Debian, jammy and noble of Ubuntu (default: bookworm trixie). Systems in FOLDER are used again.
# DEBIAN_MIRROR, UBUNTU_MIRROR: where they come from. BINDS: more files and folders of this machine that they see, such as
# a pip.conf and a folder of wheels. Variables such as PIP_INDEX_URL and TORCH_INDEX_URL hold in them too.
# PYTHON: the interpreter in them (default python3; where it is too old for the wheels, pip says so).
set -euo pipefail
here=$(realpath "$(dirname "$0")") wheels=$(realpath "$1") folder=$(realpath -m "$2")
shift 2
[[ $# -gt 0 ]] || set -- bookworm trixie
mkdir -p "$folder"
status=0
for suite in "$@"; do
  root=$folder/$suite
  case $suite in
    jammy | noble) mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} ;;
    *) mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} ;;
  esac
  if [[ ! -e "$root/complete" ]]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" "$mirror" \
      >"$folder/$suite.log" || { tail -5 "$folder/$suite.log" >&2; status=1; continue; }
    touch "$root/complete"
  fi
  # What is mounted is gone with the last process of the namespace.
  unshare --mount --pid --fork --kill-child bash -euo pipefail -s "$root" "$here" "$wheels" <<'INSIDE' || status=1
root=$1 here=$2 wheels=$3
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
bind() {
  [[ -d "$1" ]] && mkdir -p "$root$2" || { mkdir -p "$(dirname "$root$2")"; touch "$root$2"; }
  mount --bind "$1" "$root$2"
}
bind "$here" /try
bind "$wheels" /wheels
for file in /etc/hosts /etc/resolv.conf ${BINDS:-}; do bind "$file" "$file"; done
HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot "$root" /try/try.sh /wheels /tmp/try "${PYTHON:-python3}"
INSIDE
done
exit "$status"
