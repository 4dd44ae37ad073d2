#!/bin/sh
# The programs that the benchmarks compare with. Installs what is missing with apt where that is possible, starts no
# service, and says what stays missing: its rows are marked then.
set -eu
. "$(dirname "$0")/../scripts/packages.sh"
want sshd openssh-server
want ssh openssh-client
want scp openssh-client
want rsync rsync
want tsp task-spooler
want munged munge
want slurmctld slurmctld
want slurmd slurmd
want sbatch slurm-client
install_missing "peers"
