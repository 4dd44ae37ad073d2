#!/bin/sh
# The programs that the benchmarks compare with. Installs what is missing with apt where that is possible, starts no
# service, and says what stays missing: its rows are marked then.
set -eu
missing=""
want() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"; }
want sshd openssh-server
want ssh openssh-client
want scp openssh-client
want rsync rsync
want tsp task-spooler
want munged munge
want slurmctld slurmctld
want slurmd slurmd
want sbatch slurm-client
[ -n "$missing" ] || exit 0

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}
if ! command -v apt-get >/dev/null 2>&1 || ! as_root true; then
    echo "peers: not here, and not installed for want of apt and root:$missing" >&2
    exit 0
fi
# Debian's packages ask this file before they start a service; 101 means: do not. One that is there stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    trap 'as_root rm -f "$policy"' EXIT
fi
echo "peers: installing$missing" >&2
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null || true
# One by one: what cannot be had must not keep the others away.
for package in $missing; do
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$package" >/dev/null ||
        echo "peers: apt could not install $package" >&2
done
