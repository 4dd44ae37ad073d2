#!/bin/sh
# Make .venv with jobrunner and the extras named (default: demo), or leave it alone if nothing changed.
#
#   scripts/bootstrap.sh [demo | dev,demo,sweep]
#
# PYTHON names the interpreter to use; otherwise the first one that is 3.10 or newer. Copes with a Python that lacks
# venv or pip. Versions come from constraints.txt; where packages come from is pip's own configuration.
set -eu
cd "$(dirname "$0")/.."
extras=${1:-demo}
venv=.venv
log=$venv/bootstrap.log

say() { printf '%s\n' "$*" >&2; }
fail() { say "bootstrap: $*"; exit 1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.10 or newer"
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or newer found; install one, or name it: make PYTHON=/path/to/python3 demo"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

# Each way leaves a $venv/bin/python that can `-m pip`, or fails without a word (its words are in the log).
with_venv() { rm -rf "$venv"; "$python" -m venv "$venv" && "$venv/bin/python" -m pip --version; }
with_virtualenv() { rm -rf "$venv"; "$python" -m virtualenv "$venv" && "$venv/bin/python" -m pip --version; }
with_foreign_pip() {   # venv is there, ensurepip is not (Debian without python3-venv), but some pip is
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv" && "$python" -m pip --python "$venv/bin/python" install pip &&
        "$venv/bin/python" -m pip --version
}
with_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$version" ||
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends python3-venv || return 1
    with_venv
}
with_target() {   # no venv to be had: packages in a folder of their own, and a wrapper that knows it
    "$python" -m pip --version || return 1
    rm -rf "$venv"
    mkdir -p "$venv/bin" "$venv/site"
    where=$(cd "$venv" && pwd)
    real=$("$python" -c 'import sys; print(sys.executable)')
    printf '#!/bin/sh\nPYTHONPATH="%s:%s/site${PYTHONPATH:+:$PYTHONPATH}" exec "%s" "$@"\n' \
        "$(pwd)" "$where" "$real" >"$venv/bin/python"
    chmod +x "$venv/bin/python"
    : >"$venv/target"
}

make_venv() {
    mkdir -p "$venv"
    notes=$(mktemp)
    for way in with_venv with_virtualenv with_foreign_pip with_apt with_target; do
        say "bootstrap: making $venv ($way, $("$python" --version 2>&1))"
        if "$way" >>"$notes" 2>&1; then
            mv "$notes" "$log"
            return
        fi
    done
    cat "$notes" >&2
    rm -f "$notes"
    fail "$python can make no virtual environment and has no pip. Install python3-venv (Debian, Ubuntu) or pip for it,
           or name another Python: make PYTHON=/path/to/python3 demo"
}

install_packages() {
    what=".[$extras]"
    if [ -f "$venv/target" ]; then
        "$venv/bin/python" -m pip install -qq --upgrade --target "$venv/site" -c constraints.txt "$what" ||
            return 1
        here=$(cd "$venv" && pwd)
        for name in lint-imports vermin jobrunner; do
            [ -f "$venv/site/bin/$name" ] || continue
            printf '#!/bin/sh\nexec "%s/bin/python" "%s/site/bin/%s" "$@"\n' "$here" "$here" "$name" >"$venv/bin/$name"
            chmod +x "$venv/bin/$name"
        done
    else
        "$venv/bin/python" -m pip install -qq -c constraints.txt -e "$what"
    fi
}

# A .venv that is there and works is kept, unless it was made elsewhere (its scripts name that place) or PYTHON asks for
# another version than it has.
usable() {
    [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 &&
        { [ ! -f "$venv/made-in" ] || [ "$(cat "$venv/made-in")" = "$(pwd)" ]; } &&
        { [ -z "${PYTHON:-}" ] || [ "$(version "$venv/bin/python")" = "$(version "$PYTHON")" ]; }
}
version() { "$1" -c 'import sys; print(sys.version)'; }

inputs="$(pwd) $(cat pyproject.toml constraints.txt setup.py | cksum)"
for have in "$extras" dev,demo,sweep; do   # the larger set will do for the smaller
    if [ "$(cat "$venv/stamp-$have" 2>/dev/null)" = "$inputs" ] && usable; then exit 0; fi
done
if usable; then
    say "bootstrap: bringing $venv up to date"
else
    python=$(find_python) || exit 1
    make_venv
    pwd >"$venv/made-in"
fi
rm -f "$venv"/stamp-*
say "bootstrap: installing jobrunner with the extras $extras (half a minute)"
install_packages || fail "pip could not install the packages; its message is above"
printf '%s' "$inputs" >"$venv/stamp-$extras"
