# Read by scripts that want programs of this machine: `want PROGRAM PACKAGE`, then `install_missing NAME`.
#
# Installs what is missing with apt where that is possible, starts no service, and says what stays missing.
missing=""

want() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" >/dev/null; }

install_missing() {
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1 || ! as_root true; then
        echo "$1: not here, and not installed for want of apt and root:$missing" >&2
        return 0
    fi
    # Debian's packages ask this file before they start a service; 101 means: do not. One that is there stays.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        trap 'as_root rm -f "$policy"' EXIT
    fi
    echo "$1: installing$missing" >&2
    apt update -q || true
    # shellcheck disable=SC2086 # one word a package
    apt install -qy --no-install-recommends $missing && return 0
    # What cannot be had must not keep the others away.
    for package in $missing; do
        apt install -qy --no-install-recommends "$package" || echo "$1: apt could not install $package" >&2
    done
}
