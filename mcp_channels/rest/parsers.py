"""
Reads request bodies: JSON alone, and not more of it than the project allows.
"""

import json
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import status
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from mcp_channels.conf import settings


class TooLargeError(APIException):
    """
    The body is longer than ``MAX_BODY_SIZE``.
    """

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = _("The body is too long.")
    default_code = "too_large"


class JSONParser(BaseParser):
    """
    UTF-8 (RFC 8259 §8.1), whatever the charset parameter says. DRF's own parser reads without a limit, takes any codec
    that Python knows, and lets deep nesting raise.
    """

    media_type = "application/json"
    renderer_class = JSONRenderer
    """What the browsable API writes its forms with."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """
        See BaseParser.
        """
        limit = settings.max_body_size
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLargeError
        try:
            return json.loads(body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise ParseError(_("The body is not JSON.")) from None


def _refuse(name: str) -> Any:
    raise ValueError(name)
