"""Renders cases with Jinja2, set up as the transformers library sets it up: the truth that our interpreter is held to.

stdin: JSON list of {"template": text, "arguments": object}; stdout: JSON list of {"text": ...} or {"error": ...}."""
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %}...{% endgeneration %}: the body, unchanged."""
    tags = {"generation"}

    def parse(self, parser):
        from jinja2 import nodes
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception

results = []
for case in json.load(sys.stdin):
    try:
        results.append({"text": environment.from_string(case["template"]).render(**case["arguments"])})
    except Exception as error:  # any refusal of the original is a refusal
        results.append({"error": "%s: %s" % (type(error).__name__, error)})
json.dump(results, sys.stdout)
