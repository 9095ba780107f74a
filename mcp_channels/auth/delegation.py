"""
Who may speak for whom. Whoever may make a token may act as its principal, and as the principal's user; so nobody gets
to speak for a user who may do more than they may themselves.
"""

from typing import Any


def may_act_as(actor: Any, user: Any) -> bool:
    """
    Whether ``user`` may do nothing that ``actor`` may not. Blocks.
    """
    if actor.is_superuser or actor == user:
        return True
    # An inactive user's permissions can't be told: they count as none.
    if user.is_superuser or not user.is_active or (user.is_staff and not actor.is_staff):
        return False
    return bool(user.get_all_permissions() <= actor.get_all_permissions())
