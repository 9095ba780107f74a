"""
Authentication classes as projects write and combine them.
"""

import time

from django.contrib.auth import get_user_model
from rest_framework.authentication import BaseAuthentication, TokenAuthentication

OWN = ["mcp_channels.auth.authentication.BearerTokenAuthentication"]
SESSION = ["rest_framework.authentication.SessionAuthentication"]
TOKEN = ["rest_framework.authentication.TokenAuthentication"]
JWT = ["rest_framework_simplejwt.authentication.JWTAuthentication"]
STATELESS = ["rest_framework_simplejwt.authentication.JWTStatelessUserAuthentication"]
OAUTH = ["oauth2_provider.contrib.rest_framework.OAuth2Authentication"]
EVERY = [*SESSION, *OWN, *OAUTH, *TOKEN, *JWT]


class BearerKeyword(TokenAuthentication):
    """
    DRF's tokens under the name that MCP clients use.
    """

    keyword = "Bearer"


class Slow(BaseAuthentication):
    """
    Asks the database, and takes a second.
    """

    def authenticate(self, request):
        user = get_user_model().objects.get(username="alice")
        time.sleep(1)
        return user, None
