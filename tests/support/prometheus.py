"""A scrape of Prometheus as plain data."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["samples"]


def samples(text: str) -> dict[str, float]:
    """Return each sample by its name in a scrape, without the prefix "throttlekit_" and without empty labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if value)
            found[f"{sample.name.removeprefix('throttlekit_')}{{{labels}}}"] = sample.value
    return found
