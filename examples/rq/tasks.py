"""Jobs that call a partner API. The lines that end in `# throttlekit` are what throttlekit adds to them."""

import os
import urllib.request

from throttlekit import TokenBucket  # throttlekit
from throttlekit_rq import throttled  # throttlekit

PARTNER_URL = os.environ.get("PARTNER_URL", "http://localhost:8000")

partner = TokenBucket("partner-api", "10/s", burst=10)  # throttlekit


@throttled(partner)  # throttlekit
def call_partner(account_id):
    urllib.request.urlopen(f"{PARTNER_URL}/accounts/{account_id}", timeout=10).close()
