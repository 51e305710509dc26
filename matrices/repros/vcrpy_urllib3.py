"""Records one request to a server of its own, and plays it again."""

import http.server
import pathlib
import tempfile
import threading

import urllib3
import vcr


class Quiet(http.server.BaseHTTPRequestHandler):
    """Answers every request with one word, and says nothing of it."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"spam")

    def log_message(self, *args):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
tape = pathlib.Path(tempfile.mkdtemp()) / "tape.yaml"
for _ in range(2):
    with vcr.use_cassette(str(tape)):
        answer = urllib3.PoolManager().request("GET", f"http://127.0.0.1:{server.server_port}/")
        assert answer.data == b"spam"
