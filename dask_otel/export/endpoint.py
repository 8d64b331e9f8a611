"""What a request to an OTLP endpoint over HTTP goes with: headers, TLS, a proxy.

Rules
-----
1. No error shows a header's value.
2. A proxy is what requests would take for the same environment.
"""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies

from dask_otel.settings import Otlp

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def request_headers(otlp: Otlp, url: SplitResult) -> dict[str, str]:
    headers = {
        "Content-Type": "application/x-protobuf",
        "User-Agent": user_agent(),
        "Accept-Encoding": "identity",
    }
    if otlp.compression in ("gzip", "deflate"):
        headers["Content-Encoding"] = otlp.compression
    if url.username:
        headers["Authorization"] = _basic(url)
    proxy = proxy_for(otlp.endpoint)
    if proxy is not None and url.scheme == "http":
        headers |= proxy_headers(proxy)
    for name, value in otlp.headers:
        if not _TOKEN.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the OTLP header {name!r} has a name or a value that HTTP does not allow")
    given = {name.lower() for name, _ in otlp.headers}
    return {name: value for name, value in headers.items() if name.lower() not in given} | dict(otlp.headers)


def user_agent() -> str:
    """What we call ourselves in requests."""
    try:
        return f"OTel-OTLP-Exporter-Python/dask-otel-{version('dask-otel')}"
    except PackageNotFoundError:
        return "OTel-OTLP-Exporter-Python/dask-otel"


def _basic(url: SplitResult) -> str:
    pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()


def proxy_headers(proxy: SplitResult) -> dict[str, str]:
    return {"Proxy-Authorization": _basic(proxy)} if proxy.username else {}


def proxy_for(endpoint: str) -> SplitResult | None:
    """The proxy that the environment names for this endpoint, by the rules of requests."""
    if not getproxies():
        return None
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(endpoint, get_environ_proxies(endpoint))
    if not proxy:
        return None
    url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"the proxy for OTLP is of kind {url.scheme}; only http:// proxies are supported")
    return url


def tls_context(otlp: Otlp) -> ssl.SSLContext:
    """The given authority alone; else the system's, and certifi's where it is installed, as for requests."""
    context = ssl.create_default_context(cafile=otlp.certificate)
    if otlp.certificate is None and find_spec("certifi") is not None:
        import certifi

        context.load_verify_locations(certifi.where())
    if otlp.client_certificate is not None:
        context.load_cert_chain(otlp.client_certificate, otlp.client_key)
    return context
