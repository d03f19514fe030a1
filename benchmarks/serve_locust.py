"""Locust's clients for `benchmarks/serve.py`: a sentence a request, the next when it is answered.

It reads the requests' bodies from the file in `SERVE_BODIES`, one a line, and their route from
`SERVE_PATH`.
"""

import itertools
import os
from pathlib import Path

from locust import FastHttpUser, task

BODIES = itertools.cycle(Path(os.environ["SERVE_BODIES"]).read_text().splitlines())
PATH = os.environ["SERVE_PATH"]


class Client(FastHttpUser):
    """A client that is never idle."""

    @task
    def translate(self) -> None:
        """Sends the next text."""
        self.client.post(PATH, data=next(BODIES), headers={"Content-Type": "application/json"})
