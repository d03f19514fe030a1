"""A server of the web application, for tests that need a port."""

import threading

import uvicorn


class Server:
    """A server in a thread of this process."""

    def __init__(self, app, port: int = 0):
        config = uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
