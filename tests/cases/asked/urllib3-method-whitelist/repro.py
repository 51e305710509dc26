from urllib3.util.retry import Retry

Retry(3, method_whitelist=["GET"])
