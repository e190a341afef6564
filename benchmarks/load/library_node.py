"""A Node whose plain HTTP is carried by aiohttp, as https is: what the library costs beside our own client."""

from iop_fast.cli.main import main
from iop_fast.node.adapters import openai_compat
from iop_fast.node.adapters.http_client import LibraryClient

if __name__ == "__main__":
    openai_compat.client_for = LibraryClient
    main()
