"""
Forms of the admin: scopes and caps in the list of principals, new tokens, and the end of old ones.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy as _
from django.views.decorators.debug import sensitive_variables

from mcp_channels.auth.delegation import may_act_as
from mcp_channels.conf import settings
from mcp_channels.models import AccessToken, Principal, Scope

SHOWN: Final = 50
"""The most tokens on a principal's page; a list of their own has all."""


class ScopeBoxes(forms.CheckboxSelectMultiple):
    """
    Check boxes, in columns.
    """

    # The class and the label are the group's, not each box's.
    option_inherits_attrs = False

    def __init__(self, attrs: Any = None, choices: Any = ()) -> None:
        super().__init__({"class": "mcp-boxes", **(attrs or {})}, choices)


class ScopesWidget(ScopeBoxes):
    """
    Check boxes that take one line until they are opened.
    """

    template_name = "mcp_channels/widgets/scopes.html"

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """
        See Widget.
        """
        context: dict[str, Any] = super().get_context(name, value, attrs)
        options = [option for _group, group, _index in context["widget"]["optgroups"] for option in group]
        context["label"] = context["widget"]["attrs"].get("aria-label")
        context["chosen"] = [option["label"] for option in options if option["selected"]]
        return context


class JoinedInput(forms.HiddenInput):
    """
    A list in one hidden input: Django bounds how many a form may have, and a page has many rows.
    """

    def format_value(self, value: Any) -> str:
        """
        See Widget.
        """
        return ",".join(map(str, value or ()))

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        """
        See Widget.
        """
        return [part for part in data.get(name, "").split(",") if part]


class ScopesField(forms.TypedMultipleChoiceField):
    """
    The keys of scopes. Unlike a ``ModelMultipleChoiceField`` it is given its choices, and asks no query for each row.
    """

    widget = ScopesWidget
    hidden_widget = JoinedInput

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(coerce=int, required=False, label=_("Scopes"), **kwargs)

    @classmethod
    def of_all(cls) -> "ScopesField":
        """
        A choice of all scopes. Asks a query.
        """
        return cls(choices=[(scope.pk, scope.name) for scope in Scope.objects.all()])


class PrincipalForm(forms.ModelForm):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    One principal. ``actor`` is the user who fills it in.
    """

    actor: Any = None

    def clean_user(self) -> Any:
        """
        Refuse a user who may do more than who links it: their tokens would speak for it.
        """
        user = self.cleaned_data["user"]
        if user is not None and "user" in self.changed_data and not may_act_as(self.actor, user):
            raise ValidationError(_("This user may do more than you may."))
        return user


class PrincipalListForm(forms.ModelForm):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    What may be changed of a principal in the list. Fields that were left alone stay as somebody else has left them
    since: the page carries what it showed.
    """

    granted = ScopesField()

    class Meta:
        model = Principal
        fields = ("is_active", "max_streams")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        principal = self.instance
        if principal.is_anonymous:
            del self.fields["granted"]
        elif principal.pk is not None:
            self.initial.setdefault("granted", [scope.pk for scope in principal.scopes.all()])
        if "max_streams" in self.fields:
            self.fields["max_streams"].widget.attrs.update(min=1, placeholder=settings.max_listens_per_principal)
        for name, item in self.fields.items():
            item.widget.attrs["aria-label"] = f"{principal.name}: {item.label or name}"
            item.show_hidden_initial = not self.is_bound or self.add_initial_prefix(name) in self.data

    def _save_m2m(self) -> None:
        super()._save_m2m()  # type: ignore[misc]  # the stubs leave it out
        if "granted" in self.changed_data:
            before, after = set(self._granted_before()), set(self.cleaned_data["granted"])
            self.instance.scopes.add(*after - before)
            self.instance.scopes.remove(*before - after)

    def _granted_before(self) -> list[int]:
        scopes = self.fields["granted"]
        if not scopes.show_hidden_initial:
            return list(self.initial["granted"])
        shown = scopes.hidden_widget().value_from_datadict(self.data, self.files, self.add_initial_prefix("granted"))
        return [int(key) for key in shown if key.isdecimal()]


@dataclass(frozen=True, slots=True)
class Issued:
    """
    A new token and its value, on their way to the one page that shows it.
    """

    token: AccessToken
    value: str = field(repr=False)


class NewTokenForm(forms.ModelForm):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    A token to be made; one without a label is none.
    """

    label = forms.CharField(label=_("Label"), max_length=190, help_text=_("What it is for, to recognise it by."))
    scopes = forms.ModelMultipleChoiceField(
        Scope.objects.all(),
        required=False,
        label=_("Narrowed to"),
        help_text=_("None chosen: whatever the principal may do."),
        widget=ScopesWidget,
    )
    expires_at = forms.SplitDateTimeField(
        required=False, label=_("Expires"), help_text=_("Empty: never."), widget=AdminSplitDateTime
    )

    class Meta:
        model = AccessToken
        fields = ("label", "scopes", "expires_at")

    def clean_expires_at(self) -> Any:
        """
        Refuse a token that would be of no use.
        """
        expires = self.cleaned_data["expires_at"]
        if expires is not None and expires <= timezone.now():
            raise ValidationError(_("This is in the past."))
        return expires


class NewTokenFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    Makes tokens. What it made, with the values, is in ``issued``. ``actor`` is the user who fills it in.
    """

    actor: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.issued: list[Issued] = []

    def clean(self) -> None:
        """
        Refuse tokens that could do more than who makes them.
        """
        super().clean()
        user = self.instance.user
        if any(form.has_changed() for form in self.forms) and user is not None and not may_act_as(self.actor, user):
            raise ValidationError(_("This principal's user may do more than you may."))

    @sensitive_variables("value")
    def save_new(self, form: Any, commit: bool = True) -> AccessToken:
        """
        See BaseModelFormSet. The token is saved whatever ``commit`` says: its value can't be had later.
        """
        data = form.cleaned_data
        expires, scopes = data["expires_at"], [scope.name for scope in data["scopes"]]
        token, value = AccessToken.objects.issue(
            self.instance,
            label=data["label"],
            scopes=scopes or None,
            lifetime=None if expires is None else expires - timezone.now(),
        )
        self.issued.append(Issued(token, value))
        return token


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    A token that is there: it can be revoked.
    """

    revoke = forms.BooleanField(required=False, label=_("Revoke"))

    class Meta:
        model = AccessToken
        fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "revoke" in self.fields:
            self.fields["revoke"].widget.attrs["aria-label"] = gettext("Revoke %(token)s") % {"token": self.instance}
            if self.instance.revoked_at is not None:
                self.fields["revoke"].disabled = True
                self.initial["revoke"] = True

    def save(self, commit: bool = True) -> AccessToken:
        """
        See BaseModelForm. Only what was changed is written, so that what others write meanwhile stays.
        """
        token: AccessToken = super().save(commit=False)
        changed = [name for name in self.changed_data if name != "revoke"]
        if "revoke" in self.changed_data:
            token.revoked_at = timezone.now()
            changed.append("revoked_at")
        if commit:
            token.save(update_fields=changed)
        return token


class TokenFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]  # Django makes it generic in its stubs alone
    """
    A principal's newest tokens; when a page comes back, all, so that each row of it is found.
    """

    _shown: Any = None

    def get_queryset(self) -> Any:
        """
        See BaseModelFormSet.
        """
        if self._shown is None:
            tokens = super().get_queryset()
            self._shown = tokens if self.is_bound else tokens[:SHOWN]
        return self._shown
