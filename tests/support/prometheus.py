"""What a scrape of Prometheus says, as plain data."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["samples"]


def samples(text: str) -> dict[str, float]:
    """Each sample as a scrape names it, without the "throttlekit_" before it and the tier where there is none."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if value)
            found[f"{sample.name.removeprefix('throttlekit_')}{{{labels}}}"] = sample.value
    return found
