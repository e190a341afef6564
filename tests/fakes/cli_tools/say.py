"""Say what it was told: standard input, or its arguments where it has some; with `--world` what it runs in, as JSON."""

import json
import os
import resource
import sys


def world() -> dict[str, object]:
    names = ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NPROC")
    return {
        "argv": sys.argv[1:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "listing": os.listdir("."),
        "mode": oct(os.stat(".").st_mode & 0o777),
        "fds": [fd for fd in range(3, 64) if is_open(fd)],
        "session": [os.getsid(0), os.getpgid(0), os.getpid()],
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in names},
        "stdin": sys.stdin.read(),
    }


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


if "--world" in sys.argv:
    print(json.dumps(world()))
elif sys.argv[1:]:
    print(*sys.argv[1:])
else:
    sys.stdout.write(sys.stdin.read())
