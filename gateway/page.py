"""Page: the frame of the gateway's pages for people: one style, light and dark, nothing fetched from elsewhere.

Knows none of the pages. Everything that others named goes through `escape`.
"""

from __future__ import annotations

from html import escape

from starlette.responses import Response

__all__ = ["escape", "html_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d4d9df; --ground: #ffffff;
  --panel: #f6f8fa; --accent: #0b5fb0; --bar: #3b82c4; --good: #1a7f37; --bad: #b42318; --busy: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa4af; --line: #343b44; --ground: #11151a;
  --panel: #1a2027; --accent: #6cb2f5; --bar: #5aa2e0; --good: #5cc777; --bad: #ff8a80; --busy: #e5b567; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; color: var(--ink); background: var(--ground);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
a { color: var(--accent); } a:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem;
  overflow-x: auto; margin: .4rem 0; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; color: var(--soft); }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
.soft { color: var(--soft); } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
"""
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def html_page(title: str, body: str, *, style: str = "", head: str = "", status: int = 200) -> Response:
    """A whole page. `body`, `style` and `head` are HTML and CSS of ours, `title` is text."""
    document = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<style>{_STYLE}{style}</style>{head}</head><body>{body}</body></html>"
    )
    return Response(document, status, _HEADERS, "text/html")
