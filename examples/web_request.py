"""A web service that computes with Dask: the request's ``traceparent`` is the root of the computation's trace.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python examples/web_request.py
    curl -H 'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' http://127.0.0.1:8000/?n=10

A framework's instrumentation (Flask, Django, FastAPI, …) does what `do_GET` does with the header by itself.
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import dask
from distributed import Client, LocalCluster
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract

import dask_otel


def square(x: int) -> int:
    return x * x


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """The sum of the first squares."""
        n = int(parse_qs(urlsplit(self.path).query).get("n", ["3"])[0])
        token = attach(extract(self.headers))
        try:
            total = dask.delayed(sum)([dask.delayed(square)(i) for i in range(n)]).compute()
        finally:
            detach(token)
        body = f"{total}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sum squares for whoever asks.")
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        dask_otel.enable(client)
        with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
            print(f"http://127.0.0.1:{server.server_port}/", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                pass


if __name__ == "__main__":
    main()
