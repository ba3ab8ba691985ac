#!/bin/sh
# Says in one sentence which tool is missing and how Debian and Ubuntu call its package.
# Usage: check_tools.sh PYTHON
python=${1:-python3}

missing() {
    echo "make: $1 is needed and was not found; on Debian or Ubuntu: sudo apt-get install $2" >&2
    exit 1
}

command -v "$python" >/dev/null || missing "$python (3.11 or newer)" python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "make: $python is $("$python" -V 2>&1), but 3.11 or newer is needed;" \
        "name another with make PYTHON=python3.12" >&2
    exit 1
}
# venv is there without ensurepip on Debian, and only fails when it is used.
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    missing "the venv module of $python" python3-venv
"$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    missing "Python.h, which the native part is built with," python3-dev
command -v "${CXX:-g++}" >/dev/null || missing "the C++ compiler ${CXX:-g++}" g++
