#!/usr/bin/env bash
# Stemmer.version() is not the version of the package: a record of it does not say which stems an index has.
# Exits 0 while the behaviour is as printed, 1 when it has changed.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --only-binary :all: "PyStemmer==2.2.0.3"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

import Stemmer

print("package", version("PyStemmer"), "Stemmer.version()", Stemmer.version())
assert (version("PyStemmer"), Stemmer.version()) == ("2.2.0.3", "2.0.1")
PY
