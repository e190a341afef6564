"""Print bytes given in hexadecimal, one piece after another, in writes of their own."""

import os
import sys
import time

for piece in sys.argv[1:]:
    os.write(1, bytes.fromhex(piece))
    time.sleep(0.01)
