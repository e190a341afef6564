"""Exit at once; a child says the rest a moment later, as `tee` in a process substitution does."""

import os
import time

print("first", flush=True)
if os.fork() == 0:
    time.sleep(0.05)
    print("last", flush=True)
os._exit(0)
