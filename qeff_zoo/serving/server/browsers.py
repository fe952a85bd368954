# SPDX-License-Identifier: Apache-2.0
"""Checks of `Host` and `Origin`, against web pages that send requests from their visitors' browsers, and CORS.

A page can reach a server that only its visitor reaches. A page whose own name resolves to the server's address (DNS
rebinding) shows that name in `Host`; any other page shows its `Origin`.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from qeff_zoo.checkpoint.hub_access import LOOPBACK
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.server.page import PAGE_PATHS

ANY = "*"
_SHOWN = frozenset((*PAGE_PATHS, "/health", "/ping", "/metrics", "/version"))
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Hosts:
    """The names and addresses of a server.

    Args:
        named: Names with or without a port, as `_parted` returns them; `ANY` for any.
        addresses: Whether it listens at all addresses of its machine, so that any address may be its own.
    """

    named: frozenset[str]
    addresses: bool = False

    @classmethod
    def of(cls, address: str, named: Iterable[str] = ()) -> "Hosts":
        """Return the names of a server.

        Args:
            address: The address where it listens.
            named: Further names, each `HOST` or `HOST:PORT`; `ANY` for any.
        """
        written = (f"[{one}]" if one.count(":") > 1 and "]" not in one else one for one in named)
        known = [":".join(filter(None, _parted(one))) for one in written]
        is_any = ipaddress.ip_address(address.partition("%")[0]).is_unspecified
        return cls(frozenset((*LOOPBACK, _plain(address), *known)), is_any)

    def has(self, header: str) -> bool:
        """Return whether a `Host` header names the server."""
        name, port = _parted(header)
        if {ANY, name, f"{name}:{port}"} & self.named:
            return True
        return self.addresses and _is_address(name)


def _parted(host: str) -> tuple[str, str]:
    """Return the name, or the plain address, and the port of a host; empty for an invalid host."""
    match = _HOST.fullmatch(host.lower())
    return (_plain(match[1].strip("[]")), match[2] or "") if match else ("", "")


def _plain(name: str) -> str:
    """Return the canonical spelling of an address; a name without its trailing dot."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class AllowedHosts:
    """Middleware that refuses requests for another host.

    A request of HTTP/1.0 without a `Host` passes, since no browser sends one.

    Args:
        app: The guarded app.
        hosts: The names.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            named = Headers(scope=scope).getlist("host")
            if not all(map(self._hosts.has, named)):
                refusal = ApiError(
                    421,
                    f"The request is for host {brief(named[0])}; expected the address of this server, or a name that "
                    "it was started with (--allowed-hosts). Use one of those.",
                    code="host_not_allowed",
                )
                await refusal.response(scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


class AllowedOrigins:
    """Middleware that refuses requests of other web pages, unless the operator named their origin; for those, CORS.

    Args:
        app: The guarded app, with the check of its key inside: a preflight has no key.
        origins: Origins as `SCHEME://HOST` or `SCHEME://HOST:PORT`; `ANY` for any.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app, self._origins = app, frozenset(origins)
        self._shared = CORSMiddleware(
            app,
            allow_origins=self._origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=("Retry-After",),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with CORS headers for its browser, or refuse it."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin") or _embedding(scope, headers)
        if origin is None or _is_own(origin, headers):
            await self._app(scope, receive, send)
        elif {ANY, origin} & self._origins:
            await self._shared(scope, receive, send)
        else:
            refusal = ApiError(
                403,
                f"The request is of a page of {brief(origin)}; expected none, or a page of an origin that this server "
                "was started with (--allowed-origins). Name it there.",
                code="origin_not_allowed",
            ).response(scope["path"])
            refusal.headers["Vary"] = "Origin"
            await refusal(scope, receive, send)


def _embedding(scope: Scope, headers: Headers) -> str | None:
    """Return a name for the foreign page of a request without `Origin`, such as for an image; None for no such page.

    The page and the figures of the server may be linked and shown, as they change nothing.
    """
    site = headers.get("sec-fetch-site")
    is_foreign = site in ("cross-site", "same-site")
    return site if is_foreign and scope["path"] not in _SHOWN else None


def _is_own(origin: str, headers: Headers) -> bool:
    """Return whether a page comes from the server itself, whose `Host` a proxy may have changed."""
    same = origin.partition("://")[2] == headers.get("host")
    return same or headers.get("sec-fetch-site") == "same-origin"
