"""Print a number every few milliseconds until it is stopped: argv is how many milliseconds, and how many numbers."""

import itertools
import sys
import time

numbers = itertools.count() if len(sys.argv) < 3 else range(int(sys.argv[2]))
for number in numbers:
    print(number, flush=True)
    time.sleep(int(sys.argv[1]) / 1000)
