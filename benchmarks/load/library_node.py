"""A Node whose plain HTTP is carried by aiohttp, as https is: what the library costs beside our own client."""

from iop_fast.cli.main import main
from iop_fast.node.adapters import http_backend
from iop_fast.node.adapters.http_client import LibraryClient

if __name__ == "__main__":
    http_backend.client_for = LibraryClient
    main()
