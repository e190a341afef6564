"""`python -m iop_fast.cli`, the same as `iop`."""

from iop_fast.cli.program import run

if __name__ == "__main__":
    run()
