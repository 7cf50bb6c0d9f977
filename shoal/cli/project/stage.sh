#!/bin/sh
# Runs one stage of dvc.yaml in the environment of `dvc` itself, whether it is activated or not. dvc.lock records the
# command of a stage, so the command must not name a folder of one machine.
# It uses the first `shoal` of: the Python that runs DVC, which is a parent of this process; .venv in this folder; PATH.
pid=$$
depth=0
while [ "$depth" -lt 6 ] && [ "${pid:-0}" -gt 1 ]; do
    if [ -r "/proc/$pid/cmdline" ]; then
        program=$(tr '\0' '\n' < "/proc/$pid/cmdline" | head -n 1)
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
    else
        program=$(ps -o args= -p "$pid" | cut -d ' ' -f 1)
        parent=$(ps -o ppid= -p "$pid" | tr -d ' ')
    fi
    case $program in
        /*) ;;
        */*) program=$(readlink "/proc/$pid/cwd")/$program ;;
    esac
    case $program in
        */python*) [ -x "${program%/*}/shoal" ] && exec "${program%/*}/shoal" stage "$@" ;;
    esac
    pid=$parent
    depth=$((depth + 1))
done
[ -x .venv/bin/shoal ] && exec .venv/bin/shoal stage "$@"
command -v shoal > /dev/null && exec shoal stage "$@"
echo "no shoal beside this dvc, in .venv or on the PATH: install Shoal in the environment of dvc" >&2
exit 1
