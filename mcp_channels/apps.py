"""
The Django app.
"""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class MCPChannelsConfig(AppConfig):
    """
    Finds every installed app's ``mcp`` module, so that each process knows which models to watch.
    """

    name = "mcp_channels"
    label = "mcp_channels"
    verbose_name = _("MCP channels")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """
        Register the system checks, look at changes of who may listen, record for OpenTelemetry if it is installed, and
        load the ``mcp`` modules.
        """
        from mcp_channels import checks  # noqa: F401  # registering is its import's work
        from mcp_channels.auth import revocation

        revocation.connect()
        _connect_otel()
        autodiscover_modules("mcp")


def _connect_otel() -> None:
    try:
        from mcp_channels import otel
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
    else:
        otel.connect()
