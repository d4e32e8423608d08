"""The sockets of a server: unix sockets, ports of models, certificates."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from pathlib import Path

import httpx2
import pytest

from runtime.api.listening import Listening, is_exposed, listen_at_path
from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings
from tests.api.live import SERVERS, HttpServer, live_server
from tests.fakes import FakeEngine

DATA = Path(__file__).parents[1] / "data"
CERTIFICATE, KEY = str(DATA / "localhost.crt"), str(DATA / "localhost.key")
"""For 127.0.0.1, made for these tests alone and trusted by nobody; good until 2126."""


@pytest.mark.parametrize("http", SERVERS)
def test_https_with_the_certificate(http: HttpServer) -> None:
    engine = FakeEngine(settings=ServerSettings(port=0, tls_certificate=CERTIFICATE, tls_key=KEY))
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    with live_server(engine, http) as server:
        url = f"https://127.0.0.1:{server.port}/embeddings"
        answer = httpx2.post(url, json={"input": "a"}, verify=trusted)
        assert answer.status_code == 200
        with pytest.raises(httpx2.TransportError):
            httpx2.post(url.replace("https", "http"), json={"input": "a"})


def test_a_certificate_that_is_no_good_is_a_configuration_error(tmp_path: Path) -> None:
    torn = tmp_path / "torn.pem"
    torn.write_text("nothing")
    for certificate, key in ((str(torn), KEY), (CERTIFICATE, str(torn)), (CERTIFICATE, str(tmp_path / "none"))):
        with pytest.raises(ConfigurationError, match="tls_certificate and tls_key can't be used"):
            Listening(ServerSettings(port=0, tls_certificate=certificate, tls_key=key))


@pytest.mark.parametrize("http", SERVERS)
def test_a_unix_socket_takes_the_place_of_the_port(http: HttpServer, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with live_server(FakeEngine(settings=ServerSettings(uds=path)), http) as server:
        assert server.port == 0
        assert not stat.S_IMODE(os.stat(path).st_mode) & stat.S_IWOTH
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=path), base_url="http://cotenant") as client:
            assert client.post("/embeddings", json={"input": "a"}).status_code == 200
    assert not os.path.exists(path)


def test_a_dead_servers_socket_is_replaced_and_a_live_ones_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    listen_at_path(path).close()
    with listen_at_path(path), pytest.raises(ConfigurationError, match="Address already in use"):
        listen_at_path(path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="Address already in use"):
        listen_at_path(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_one_address_that_cannot_be_had_closes_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bound = {f":{taken.getsockname()[1]}": "a"}
        with pytest.raises(ConfigurationError, match="can't listen on"):
            Listening(ServerSettings(port=0, bind_model=bound))  # an unclosed socket would be a warning, thus an error


@pytest.mark.parametrize(
    ("settings", "exposed"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "example.org"}, True),
        ({"host": "0.0.0.0", "api_key": "k"}, False),
        ({"host": "0.0.0.0", "keys_file": "f"}, False),
        ({"host": "0.0.0.0", "uds": "s"}, False),
        ({"uds": "s", "bind_model": {"0.0.0.0:8082": "a"}}, True),
        ({"bind_model": {":8082": "a"}}, False),
    ],
)
def test_a_server_that_others_reach_without_a_key_is_noticed(settings: dict[str, object], exposed: bool) -> None:
    assert is_exposed(ServerSettings.model_validate(settings)) is exposed
