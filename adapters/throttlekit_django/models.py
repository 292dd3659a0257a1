"""A model without a table, for the permission and the admin's index."""

from django.db import models  # type: ignore[import-untyped]

__all__ = ["Limits"]


class Limits(models.Model):  # type: ignore[misc]
    """The fleet's limits, which are in the store. The permission to see them is `throttlekit_django.view_limits`."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "limits"
