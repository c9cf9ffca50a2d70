#!/bin/sh
# Installs the SDKs that the virtual environment cannot hold beside its own, each in a folder of .cache/sdks: `make sdks`.
set -eu
root=${1:-.cache/sdks}
mkdir -p "$root"
for version in 2.0.17 3.5.1; do
	test -x "$root/py-$version/bin/python" || {
		"${PYTHON:-python3}" -m venv "$root/py-$version"
		"$root/py-$version/bin/pip" install --quiet "cartesia==$version"
	}
done
for version in 3.5.1 4.2.0; do
	test -d "$root/js-$version/node_modules" || {
		mkdir -p "$root/js-$version"
		(cd "$root/js-$version" && npm init -y >/dev/null && npm install --silent "@cartesia/cartesia-js@$version")
	}
done
