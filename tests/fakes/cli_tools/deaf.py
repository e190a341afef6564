"""Answer without ever reading standard input, after so many seconds."""

import sys
import time

time.sleep(float(sys.argv[1]))
print("heard nothing", end="")
