"""
What several lists of the admin show in their columns.
"""

from datetime import datetime

from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.timesince import timesince
from django.utils.translation import gettext

from mcp_channels.admin.filters import PrincipalFilter
from mcp_channels.models import Principal


def ago(moment: datetime | None) -> str | None:
    """
    How long ago something was; the exact time is in the title.
    """
    if moment is None:
        return None
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        localize(timezone.localtime(moment) if timezone.is_aware(moment) else moment),
        gettext("%(time)s ago") % {"time": timesince(moment, depth=1)},
    )


def rows_of(principal: Principal, model: type[Model], *, site: str) -> str:
    """
    The address of the list of a model's rows, narrowed to those of a principal, in the admin site of this name.
    """
    options = model._meta
    name = f"admin:{options.app_label}_{options.model_name}_changelist"
    return f"{reverse(name, current_app=site)}?{PrincipalFilter.parameter_name}={principal.pk}"
