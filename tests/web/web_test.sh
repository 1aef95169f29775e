#!/bin/sh
# The report in a real browser: web_test.sh PROGRAM PYTHON. Exit code 77 says what is missing here.
set -u
program=$1 python=$2
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
driver=$(command -v chromedriver)
absent() { echo "skipped: $1 (./dev web-test installs what it needs)"; exit 77; }
[ -n "$chromium" ] || absent "no chromium here"
[ -n "$driver" ] || absent "no chromedriver here"
"$python" -c 'import selenium' 2>/dev/null || absent "$python has no selenium"
exec "$python" "$(dirname "$0")/report_test.py" "$program" "$chromium" "$driver"
