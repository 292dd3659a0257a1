"""A Django project on django-rq."""
