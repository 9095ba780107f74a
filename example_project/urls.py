"""
The example project's pages.
"""

from django.contrib import admin
from django.urls import path

from example_project.notes import views

urlpatterns = [
    path("", views.index, name="index"),
    path("admin/", admin.site.urls),
]
