#!/bin/sh
# A Chromium for the browser tests: the system's, else Debian's package, else Playwright's own.
for name in "$CHROMIUM" chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" >/dev/null && exit 0
done
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get update && apt-get install -y --no-install-recommends chromium fonts-noto-cjk; } \
        >/dev/null 2>&1 && exit 0
fi
"$1" -m playwright install chromium
