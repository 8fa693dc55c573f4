"""Validates JSON values against the schemas of OpenAPI and AsyncAPI documents.

Reads one JSON object from standard input:

    {"documents": {NAME: DOCUMENT},
     "values": [{"document": NAME, "schema": JSON_POINTER, "value": VALUE}]}

Prints each error and exits with 1 if a value does not match its schema.
"""

import json
import sys
from urllib.parse import quote

import jsonschema_rs


def main():
    task = json.load(sys.stdin)
    failures = 0
    for entry in task["values"]:
        document = task["documents"][entry["document"]]
        schema = {**document, "$ref": "#" + quote(entry["schema"], safe="/~")}
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        for error in validator.iter_errors(entry["value"]):
            failures += 1
            print(f"{entry['document']} {entry['schema']}: {error}\nvalue: {json.dumps(entry['value'])}\n")
    print(f"{len(task['values'])} values checked")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
