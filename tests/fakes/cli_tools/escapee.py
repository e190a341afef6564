"""Leave a process behind as a daemon does: two forks and a session of its own. `--hidden` drops its environment too."""

import os
import sys
import time

print("done", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if "--hidden" in sys.argv:
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"], {})
        time.sleep(3600)
    os._exit(0)
time.sleep(float(sys.argv[1]))
