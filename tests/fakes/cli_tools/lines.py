"""Print its arguments, a line each."""

import sys

for line in sys.argv[1:]:
    print(line, flush=True)
