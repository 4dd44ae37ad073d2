#!/bin/sh
# The programs that the tests want on this machine. Installs what is missing with apt where that is possible, starts no
# service, and says what stays missing: the tests that need it then say so too.
set -eu
. "$(dirname "$0")/packages.sh"
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
install_missing "system packages"
