"""
Bearer tokens that are asked for when they are needed (RFC 6750 §2.1).
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx2

TokenSource = Callable[[bool], str | Awaitable[str]]
"""
Gives the token for a request. Its argument is True where the server has just refused the last one with 401: then a
token that was kept must not be given again.
"""


class BearerAuth(httpx2.Auth):
    """
    Signs every request with a token. A source's token is renewed once where the server answers 401; a second 401 is
    final.
    """

    def __init__(self, token: str | TokenSource) -> None:
        self._source = token
        self._last: str | None = None
        self._renewing: asyncio.Lock | None = None

    def __repr__(self) -> str:
        return "<BearerAuth>"

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """
        See httpx2.Auth.
        """
        if isinstance(self._source, str):
            request.headers["Authorization"] = f"Bearer {self._source}"
            yield request
            return
        token = self._last = await self._ask(self._source, refused=False)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = f"Bearer {await self._renew(token)}"
            yield request

    async def _ask(self, source: TokenSource, *, refused: bool) -> str:
        answer = source(refused)
        return await answer if inspect.isawaitable(answer) else answer

    async def _renew(self, refused: str) -> str:
        self._renewing = self._renewing or asyncio.Lock()
        async with self._renewing:
            # Of many requests that were refused together, the first renews the token for all.
            if self._last is None or self._last == refused:
                assert not isinstance(self._source, str)
                self._last = await self._ask(self._source, refused=True)
            return self._last
