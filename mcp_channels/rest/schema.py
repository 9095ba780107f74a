"""
What drf-spectacular can't tell from the code, where it is installed (the extra ``openapi``).
"""

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

try:
    from drf_spectacular.extensions import OpenApiAuthenticationExtension
    from drf_spectacular.utils import extend_schema
except ImportError:

    def described(**options: Any) -> Callable[[_T], _T]:
        """
        Does nothing.
        """
        return lambda view: view

else:

    def described(**options: Any) -> Callable[[_T], _T]:
        """
        As drf-spectacular's ``extend_schema``.
        """
        return extend_schema(**options)  # type: ignore[return-value]  # its type variable is bound to callables

    class BearerTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # it registers itself
        """
        How a schema names ``BearerTokenAuthentication``.
        """

        target_class = "mcp_channels.auth.authentication.BearerTokenAuthentication"
        name = "mcpBearer"

        def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
            """
            See OpenApiAuthenticationExtension.
            """
            return {"type": "http", "scheme": "bearer"}
