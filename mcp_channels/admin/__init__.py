"""
The admin: who may call, with which tokens, and who listens. Importing it registers its parts.
"""

from mcp_channels.admin.principals import PrincipalAdmin, ScopeAdmin
from mcp_channels.admin.streams import LiveStreamAdmin
from mcp_channels.admin.tokens import AccessTokenAdmin

__all__ = ["AccessTokenAdmin", "LiveStreamAdmin", "PrincipalAdmin", "ScopeAdmin"]
