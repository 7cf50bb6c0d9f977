#!/bin/sh
# Runs one stage of dvc.yaml with the environment that `dvc` itself runs in, activated or not: dvc.lock records a stage's
# command, so that it must not name a folder of one machine.
# In this order: the Python of a process above this one (that is DVC's), .venv in this folder, the PATH.
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
echo "no shoal beside this dvc, in .venv, or on the PATH: install Shoal in the environment that dvc runs in" >&2
exit 1
