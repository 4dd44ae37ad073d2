#!/bin/sh
# The programs that the tests want on this machine. Installs what is missing with apt where that is possible, starts no
# service, and says what stays missing: the tests that need it then say so too.
set -eu
missing=""
want() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"; }
want sshd openssh-server
want ssh openssh-client
want tmux tmux
want rsync rsync
want fish fish
want tcsh tcsh
want zsh zsh
want git git
want ip iproute2
want iptables iptables
want ps procps
want unshare util-linux
want dockerd docker.io  # the tests start an engine of their own, on a socket of their own
[ -n "$missing" ] || exit 0

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}
if ! command -v apt-get >/dev/null 2>&1 || ! as_root true; then
    echo "system packages: not here, and not installed for want of apt and root:$missing" >&2
    exit 0
fi
# Debian's packages ask this file before they start a service; 101 means: do not. One that is there stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    trap 'as_root rm -f "$policy"' EXIT
fi
echo "system packages: installing$missing" >&2
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null || true
# shellcheck disable=SC2086 # one word a package
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $missing >/dev/null ||
    echo "system packages: apt could not install all of:$missing" >&2
