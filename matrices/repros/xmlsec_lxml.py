"""Importing is enough: xmlsec compares its libxml2 with the one that lxml was built against."""

import xmlsec

print(xmlsec.__version__)
