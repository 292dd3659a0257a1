"""Why jobs wait, from the store alone: the fleet at a glance, and one job."""
