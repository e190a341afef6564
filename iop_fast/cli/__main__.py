"""`python -m iop_fast.cli`, the same as `iop`."""

from iop_fast.cli.main import main

if __name__ == "__main__":
    main(prog_name="iop")
