"""The URLs of a project that creates its limiter after its URLs are read."""

urlpatterns: list[object] = []
