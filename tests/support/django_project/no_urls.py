"""URLs of a project that makes its limiter later than its URLs are read."""

urlpatterns: list[object] = []
