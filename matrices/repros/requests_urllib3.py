"""Importing is enough: requests_toolbelt 0.10.1 wants urllib3.contrib.appengine."""

import requests_toolbelt

print(requests_toolbelt.__version__)
