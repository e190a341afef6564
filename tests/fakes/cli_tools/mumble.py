"""Report progress on standard error alone for so many seconds, then answer."""

import sys
import time

for _ in range(int(float(sys.argv[1]) / 0.05)):
    print(".", end="", file=sys.stderr, flush=True)
    time.sleep(0.05)
print("answer")
