"""What the tests share: servers, waiting for conditions."""
