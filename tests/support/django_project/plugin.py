"""A plugin for settings that name it."""

from throttlekit.hookspecs import Decided, hookimpl


class CountDecisions:
    """Counts decisions."""

    decided = 0

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        CountDecisions.decided += 1
