"""
How lists are cut into pages, whatever the project's own default is.
"""

from rest_framework.pagination import PageNumberPagination


class Pages(PageNumberPagination):
    """
    Pages of 100, or as many as ``page_size`` says, up to 1,000.
    """

    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 1000
