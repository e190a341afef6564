"""Close standard output early and go on for so many seconds."""

import os
import sys
import time

print("said", flush=True)
os.close(1)
time.sleep(float(sys.argv[1]))
