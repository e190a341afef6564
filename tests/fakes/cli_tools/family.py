"""Start a tree of processes and wait for it, for an hour."""

import os
import time

for _ in range(3):
    if os.fork() == 0:
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(3600)
                os._exit(0)
        time.sleep(3600)
        os._exit(0)
print("ready", flush=True)
time.sleep(3600)
