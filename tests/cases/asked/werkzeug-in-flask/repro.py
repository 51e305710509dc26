import flask
from werkzeug.urls import url_quote

print(flask.Flask("app"), url_quote("a b"))
