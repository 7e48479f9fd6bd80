"""The page's own files, and the list of calls at /docs."""

import html
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}


def static_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """The files that may be asked for, by name, each with its type."""
    return {
        path.name: (path, _TYPES[path.suffix])
        for path in folder.iterdir()
        if path.suffix in _TYPES and path.is_file()
    }


def reference(api: dict[str, Any]) -> str:
    """A page that lists all calls, made from their OpenAPI description."""
    parts = []
    for path, methods in api["paths"].items():
        for method, call in methods.items():
            fields = _fields(api, call)
            rows = "".join(
                f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(text)}</td></tr>"
                for name, text in fields
            )
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(call.get('summary', ''))}</p>"
                + (f"<table>{rows}</table>" if rows else "")
            )
    body = "".join(parts)
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'><title>axial studio: API</title>"
        "<link rel=stylesheet href=/static/style.css></head><body class=reference><main>"
        "<h1>API of the axial studio</h1><p><a href=/>The page</a>, "
        "<a href=/openapi.json>OpenAPI</a></p>"
        f"{body}</main></body></html>"
    )


def _fields(api: dict[str, Any], call: dict[str, Any]) -> list[tuple[str, str]]:
    """What a call takes: parameters of its path and query, fields of its body."""
    found = [(p["name"], f"{p['in']}, {_kind(p['schema'])}") for p in call.get("parameters", [])]
    for content in call.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        for part in (schema, *schema.get("anyOf", []), *schema.get("allOf", [])):
            name = part.get("$ref", "").rpartition("/")[2]
            known = api.get("components", {}).get("schemas", {}).get(name, {})
            for field, about in known.get("properties", {}).items():
                needed = ", required" if field in known.get("required", []) else ""
                words = about.get("description") or about.get("title", "")
                found.append((field, f"{_kind(about)}{needed}: {words}"))
    return found


def _kind(schema: dict[str, Any]) -> str:
    kinds = [part.get("type", "") for part in (schema, *schema.get("anyOf", []))]
    return " or ".join(dict.fromkeys(kind for kind in kinds if kind)) or "value"
