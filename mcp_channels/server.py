"""
The SDK's server, plus models as resources, scopes, and changes that reach listening clients.
"""

import inspect
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final, TypeVar

import mcp_types as types
from channels.db import database_sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer as SDKServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.uri_template import UriTemplate
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_channels import sdk, topics
from mcp_channels.auth.principals import Caller
from mcp_channels.conf import settings
from mcp_channels.models import Principal
from mcp_channels.notify import _apublish, publish
from mcp_channels.resources import authorize, listing
from mcp_channels.resources.model import ModelResource
from mcp_channels.resources.watch import watch

SCOPE_KEY: Final = "mcp_channels"
"""The key of the ASGI scope under which an endpoint leaves its ``Call``."""

_METHODS: Final = {
    "tools": ("tools/list", "tools/call"),
    "prompts": ("prompts/list", "prompts/get"),
    "resources": ("resources/list", "resources/templates/list", "resources/read"),
}

_CallableT = TypeVar("_CallableT", bound=Callable[..., Any])
_ResourceT = TypeVar("_ResourceT", bound=type[ModelResource])


class Call:
    """
    What an endpoint tells its server of a request.
    """

    __slots__ = ("caller", "streams")

    def __init__(self, caller: Caller, *, streams: bool) -> None:
        self.caller = caller
        self.streams = streams
        """Whether the endpoint serves ``subscriptions/listen``."""


class MCPServer(SDKServer[Any]):
    """
    An MCP server: tools, prompts and resources as in the SDK, and models with ``@server.register(Model)``.
    """

    def __init__(
        self,
        name: str | None = None,
        *args: Any,
        offers: Collection[str] = ("tools", "prompts", "resources"),
        **kwargs: Any,
    ) -> None:
        """
        Arguments are the SDK's, and ``offers``: what of tools, prompts and resources the server has. It doesn't
        advertise the rest, answers their methods -32601, and honours no subscription to them.
        """
        if "subscriptions" in kwargs:
            raise TypeError("MCPServer takes no subscriptions: the channel layer carries them")
        unknown = set(offers) - _METHODS.keys()
        if unknown:
            raise ValueError(f"offers has {sorted(unknown)}; it may have tools, prompts and resources")
        self.offers = frozenset(offers)
        """What of tools, prompts and resources this server has."""
        self.model_resources: list[ModelResource] = []
        """The registered models' resources."""
        self.is_served = False
        """Whether an endpoint serves it: from then on, a tool that comes or goes is a change to tell."""
        self._scopes: dict[tuple[str, str], str] = {}
        with sdk.logging_left_alone():
            super().__init__(name, *args, subscriptions=_Publishing(), **kwargs)
        self._set_handlers()

    def register(self, model: type[models.Model]) -> Callable[[_ResourceT], _ResourceT]:
        """
        Serve the rows of ``model`` as the decorated ``ModelResource`` says.

        Raises:
            ImproperlyConfigured: the declaration can't serve this model, or the server offers no resources.
        """

        def decorate(resource_class: _ResourceT) -> _ResourceT:
            if "resources" not in self.offers:
                raise ImproperlyConfigured(f"The server {self.name!r} offers no resources.")
            resource = resource_class(model)
            self.model_resources.append(resource)
            watch(resource)
            return resource_class

        return decorate

    def tool(self, *args: Any, scope: str | None = None, **kwargs: Any) -> Callable[[_CallableT], _CallableT]:
        """
        As the SDK's; ``scope`` names the scope that a caller needs.
        """
        decorate = super().tool(*args, **kwargs)

        def decorate_scoped(function: _CallableT) -> _CallableT:
            self._set_scope("tool", kwargs.get("name") or (args[0] if args else None) or function.__name__, scope)
            return decorate(function)

        return decorate_scoped

    def resource(self, uri: str, *, scope: str | None = None, **kwargs: Any) -> Callable[[_CallableT], _CallableT]:
        """
        As the SDK's; ``scope`` names the scope that a caller needs to read, or to subscribe.
        """
        self._set_scope("resource", uri, scope)
        decorate = super().resource(uri, **kwargs)

        def decorate_and_tell(function: _CallableT) -> _CallableT:
            decorated = decorate(function)
            self._changed(topics.RESOURCES)
            return decorated

        return decorate_and_tell

    def add_tool(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """
        As the SDK's; once the server is served, listening clients are told that the tools changed. A description that
        is taken from the docstring loses its indentation.
        """
        if kwargs.get("description") is None and len(args) < 3:
            kwargs["description"] = inspect.getdoc(fn)
        super().add_tool(fn, *args, **kwargs)
        self._changed(topics.TOOLS)

    def remove_tool(self, name: str) -> None:
        """
        As the SDK's; once the server is served, listening clients are told that the tools changed.
        """
        super().remove_tool(name)
        self._changed(topics.TOOLS)

    def add_prompt(self, prompt: Any) -> None:
        """
        As the SDK's; once the server is served, listening clients are told that the prompts changed.
        """
        if prompt.description is not None:
            prompt.description = inspect.cleandoc(prompt.description)
        super().add_prompt(prompt)
        self._changed(topics.PROMPTS)

    def remove_prompt(self, name: str) -> None:
        """
        As the SDK's; once the server is served, listening clients are told that the prompts changed.
        """
        super().remove_prompt(name)
        self._changed(topics.PROMPTS)

    def add_resource(self, resource: Any) -> None:
        """
        As the SDK's; once the server is served, listening clients are told that the resources changed.
        """
        super().add_resource(resource)
        self._changed(topics.RESOURCES)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """
        As the SDK's; a caller without the tool's scope gets a ``ToolError``.
        """
        scope = self._scopes.get(("tool", name))
        if not caller(context).has_scope(scope):
            raise ToolError(f"The tool {name!r} needs the scope {scope!r}.")
        return await super().call_tool(name, arguments, context)

    async def read_resource(self, uri: Any, context: Any = None) -> Any:
        """
        As the SDK's; what the caller may not read is not found, like what doesn't exist.

        Raises:
            ResourceNotFoundError: see above.
        """
        who, text = caller(context), str(uri)
        contents = await database_sync_to_async(self._read)(who, text)
        if contents is not None:
            return [contents]
        if text not in await self.readable(who, [text], checked=()):
            raise ResourceNotFoundError(f"Unknown resource: {text}")
        return await super().read_resource(uri, context)

    def _read(self, who: Caller, uri: str) -> ReadResourceContents | None:
        found = authorize.find(self.model_resources, who, uri)
        if found is None:
            return None
        resource, row = found
        return ReadResourceContents(content=resource.get_content(row, who), mime_type=resource.mime_type)

    async def readable(self, who: Caller, uris: Collection[str], *, checked: Collection[str]) -> set[str]:
        """
        Those of ``uris`` that ``who`` may read. ``checked`` are those that the models' rule lets through already.
        """
        found = set(checked)
        left = [uri for uri in uris if uri not in found]
        if left:
            static = {str(item.uri) for item in await self.list_resources()}
            templates = [str(item.uri_template) for item in await self.list_resource_templates()]
            for uri in left:
                declared = _declaration(uri, static, templates)
                if declared is not None and who.has_scope(self._scopes.get(("resource", declared))):
                    found.add(uri)
        return found

    def unguarded_tools(self) -> list[str]:
        """
        The names of the tools that need no scope, and don't say that they only read (``readOnlyHint``).
        """
        if "tools" not in self.offers:
            return []
        return [
            tool.name
            for tool in sdk.tools(self)
            if ("tool", tool.name) not in self._scopes
            and not (tool.annotations is not None and tool.annotations.read_only_hint)
        ]

    def _set_scope(self, kind: str, name: str, scope: str | None) -> None:
        if scope is not None:
            self._scopes[kind, name] = scope

    def _changed(self, topic: topics.Topic) -> None:
        # While modules are being imported, nobody listens and the settings may not be ready.
        if getattr(self, "is_served", False):
            publish(topic, immediately=True)

    # Methods

    def _set_handlers(self) -> None:
        for name, methods in _METHODS.items():
            if name not in self.offers:
                sdk.withdraw(self, methods)
        sdk.set_handler(self, "server/discover", types.RequestParams, self._discover)
        sdk.set_handler(self, "subscriptions/listen", types.SubscriptionsListenRequestParams, _refuse_listen)
        if "resources" in self.offers:
            sdk.set_handler(self, "resources/list", types.PaginatedRequestParams, self._list_resources)
            sdk.set_handler(
                self, "resources/templates/list", types.PaginatedRequestParams, self._list_resource_templates
            )

    async def _discover(self, ctx: Any, params: Any) -> types.DiscoverResult:
        capabilities = sdk.capabilities(self, ctx.protocol_version)
        if not _call(ctx).streams:
            # What can't be heard here isn't promised here.
            for name in ("tools", "prompts", "resources"):
                if (capability := getattr(capabilities, name)) is not None:
                    capability.list_changed = False
            if capabilities.resources is not None:
                capabilities.resources.subscribe = False
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS), capabilities=capabilities, instructions=self.instructions
        )

    async def _list_resources(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        who = _call(ctx).caller
        cursor = params.cursor if params is not None else None
        # The SDK's own come first, all on the first page.
        own = [] if cursor else [item for item in await self.list_resources() if self._may_read(who, item)]
        list_page = database_sync_to_async(listing.page)
        try:
            rows, following = await list_page(self.model_resources, who, cursor, limit=settings.resource_page_size)
        except ValueError:
            raise MCPError(code=types.INVALID_PARAMS, message="Invalid cursor") from None
        return types.ListResourcesResult(resources=[*own, *rows], next_cursor=following)

    def _may_read(self, who: Caller, item: types.Resource) -> bool:
        return who.has_scope(self._scopes.get(("resource", str(item.uri))))

    async def _list_resource_templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        who = _call(ctx).caller
        templates = [
            item
            for item in await self.list_resource_templates()
            if who.has_scope(self._scopes.get(("resource", str(item.uri_template))))
        ]
        templates.extend(listing.templates(self.model_resources, who))
        return types.ListResourceTemplatesResult(resource_templates=templates)


def caller(context: Context[Any, Any] | None) -> Caller:
    """
    Who calls a tool, a prompt or a resource, from the ``Context`` that the SDK hands it.
    """
    try:
        request = None if context is None else context.request_context
    except ValueError:  # a context made outside a request
        request = None
    return _call(request).caller


def _call(ctx: Any) -> Call:
    scope = getattr(getattr(ctx, "request", None), "scope", {})
    call = scope.get(SCOPE_KEY)
    # In process, and over stdio, nobody signs in and nobody can listen.
    return call if isinstance(call, Call) else Call(Caller(Principal(name="local"), frozenset()), streams=False)


class _Publishing:
    """
    The SDK's ``SubscriptionBus``: what a tool announces with ``ctx.notify_*`` goes the way of all notifications.
    """

    async def publish(self, event: ServerEvent) -> None:
        match event:
            case ToolsListChanged():
                topic = topics.TOOLS
            case PromptsListChanged():
                topic = topics.PROMPTS
            case ResourcesListChanged():
                topic = topics.RESOURCES
            case ResourceUpdated(uri=uri):
                topic = topics.resource(str(uri))
        await _apublish(topic, using=None, immediately=False)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        # The SDK's own listen handler is replaced, and nobody else asks.
        return lambda: None


async def _refuse_listen(ctx: Any, params: Any) -> Any:
    raise MCPError(code=types.METHOD_NOT_FOUND, message="subscriptions/listen requires a streaming transport")


@lru_cache(256)
def _template(text: str) -> UriTemplate:
    return UriTemplate.parse(text)


def _declaration(uri: str, static: Collection[str], templates: Collection[str]) -> str | None:
    if uri in static:
        return uri
    return next((text for text in templates if _template(text).match(uri) is not None), None)
