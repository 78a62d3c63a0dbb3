"""DocsPage: an OpenAPI document as a page to read: made on the server, without a script and without the network.

Knows no route; it shows whatever document it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from gateway.page import escape, html_page

_STYLE = """
nav ul { columns: 20rem; list-style: none; padding: 0; margin: .5rem 0; } nav li { overflow-wrap: anywhere; }
details.operation { border: 1px solid var(--line); border-radius: 8px; margin: .6rem 0; padding: 0 .9rem; }
details.operation[open] { padding-bottom: .8rem; }
details.operation > summary { padding: .55rem 0; cursor: pointer; overflow-wrap: anywhere; }
details.operation > summary .soft { margin-left: .6rem; }
.method { display: inline-block; min-width: 4.2em; font: 700 13px ui-monospace, monospace; color: var(--accent); }
details details { margin: .3rem 0; } details details summary { cursor: pointer; color: var(--soft); }
.inside { scroll-margin-top: 3.5rem; } table { table-layout: auto; } td { overflow-wrap: anywhere; }
h4 { margin: .9rem 0 .2rem; font-size: .95rem; } p { max-width: 60rem; }
"""


def docs_page(document: dict[str, Any]) -> Response:
    """The page."""
    info = document["info"]
    parts = [
        f"<header><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p class=soft>{escape(info["summary"])} <a href="openapi.json">openapi.json</a> · '
        '<a href="status">status</a> · <a href="errors">errors</a></p></header>',
        _text(info["description"]),
        _contents(document),
        "<main>",
        *_operations(document),
        "<h2 id=schemas>Schemas</h2>",
        *_schemas(document),
        "</main>",
    ]
    return html_page(f"{info['title']} API", "".join(parts), style=_STYLE)


def _by_tag(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if tag in operation["tags"]:
                yield method.upper(), path, operation


def _contents(document: dict[str, Any]) -> str:
    parts = ["<nav aria-label=Contents>"]
    for tag in document["tags"]:
        operations = list(_by_tag(document, tag["name"]))
        if not operations:
            continue
        parts.append(f"<h3>{escape(tag['name'])}</h3><ul>")
        parts += [
            f'<li><a href="#{escape(operation["operationId"])}">{escape(operation["summary"])}</a>'
            for _, _, operation in operations
        ]
        parts.append("</ul>")
    return "".join([*parts, "</nav>"])


def _operations(document: dict[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        operations = list(_by_tag(document, tag["name"]))
        if not operations:
            continue
        yield f"<h2>{escape(tag['name'])}</h2><p class=soft>{escape(tag['description'])}</p>"
        for method, path, operation in operations:
            yield (
                "<details class=operation><summary>"
                f"<span class=method>{method}</span><code>{escape(path)}</code>"
                f"<span class=soft>{escape(operation['summary'])}</span></summary>"
                # A link to what is inside a closed part opens it, one to the part itself does not.
                f'<div class=inside id="{escape(operation["operationId"])}">'
            )
            yield _text(operation["description"])
            yield from _parameters(document, operation)
            if body := operation.get("requestBody"):
                yield f"<h4>Body{'' if body['required'] else ', optional'}</h4>"
                yield from _contents_of(body["content"])
            yield from _responses(operation)
            yield "</div></details>"


def _parameters(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    if not operation["parameters"]:
        return
    yield "<h4>Parameters</h4><table><tbody>"
    for reference in operation["parameters"]:
        parameter = document["components"]["parameters"][reference["$ref"].rpartition("/")[2]]
        needed = ", required" if parameter["required"] else ""
        yield (
            f"<tr><th scope=row><code>{escape(parameter['name'])}</code>"
            f"<td class=soft>{escape(parameter['in'])}{needed}"
            f"<td>{_inline(parameter['description'])} "
            f"<span class=soft>Example: <code>{escape(str(parameter['example']))}</code></span>"
        )
    yield "</tbody></table>"


def _responses(operation: dict[str, Any]) -> Iterator[str]:
    yield "<h4>Answers</h4><table><tbody>"
    for status, response in operation["responses"].items():
        headers = ", ".join(response["headers"])
        yield f"<tr><th scope=row>{escape(status)}<td>{_inline(response['description'])} "
        yield f"<span class=soft>Headers: {escape(headers)}</span>"
        yield from _contents_of(response.get("content", {}))
    yield "</tbody></table>"


def _contents_of(contents: dict[str, Any]) -> Iterator[str]:
    for media_type, content in contents.items():
        yield f"<div><code>{escape(media_type)}</code> {_schema_name(content['schema'])}</div>"
        for name, example in content.get("examples", {}).items():
            shown = json.dumps(example["value"], indent=2, ensure_ascii=False)
            yield f"<details><summary>example: {escape(name)}</summary><pre>{escape(shown)}</pre></details>"


def _schemas(document: dict[str, Any]) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        yield f'<h3 id="schema-{escape(name)}"><code>{escape(name)}</code></h3>{_text(schema.get("description", ""))}'
        needed = schema.get("required", [])
        rows = [
            f"<tr><th scope=row><code>{escape(field)}</code><td>{_schema_name(of)}"
            f"{' <span class=soft>required</span>' if field in needed else ''}<td>{_inline(of.get('description', ''))}"
            for field, of in schema.get("properties", {}).items()
        ]
        yield f"<table><tbody>{''.join(rows)}</tbody></table>"


def _schema_name(schema: dict[str, Any]) -> str:
    """What a schema is, in a few words, with links to those that have a name."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if options := schema.get("anyOf"):
        return " or ".join(map(_schema_name, options))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"list of {_schema_name(items)}" if items else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of {_schema_name(values)}" if isinstance(values, dict) and values else "object"
    return escape(str(schema.get("format") or schema.get("type") or "anything"))


def _text(text: str) -> str:
    return "".join(f"<p>{_inline(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph.strip())


def _inline(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
