"""Ignore SIGTERM and go on for an hour, with a child that does the same."""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
print("I stay", flush=True)
time.sleep(3600)
sys.exit(0)
