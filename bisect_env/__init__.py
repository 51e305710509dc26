"""bisect-env: which combination of versions first breaks this script, and is it a crash or a flake?"""
