#!/bin/sh
# Fetches the chat page's libraries from npm into src/divine/server/page/vendor. The files are those of
# the packages but for their import lines, which name each other relatively: the page has no build step.
set -eu
vendor=$(cd "$(dirname "$0")/.." && pwd)/src/divine/server/page/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for package in common@1.5.5 highlight@1.2.5 markdown@1.8.1; do
    name=${package%@*}
    tar xzf "$(npm pack --silent "@lezer/$package")"
    sed -E "s#^(import .* from )'@lezer/([a-z]+)';#\\1'./lezer-\\2.js';#" package/dist/index.js \
        > "$vendor/lezer-$name.js"
    cp package/LICENSE "$vendor/lezer-$name.LICENSE"
    rm -rf package
done
