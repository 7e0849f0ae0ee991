"""The report's style sheet: light and dark, one column, in print as on paper; nothing from elsewhere."""

from __future__ import annotations

_LIGHT = """--paper: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6776; --line: #dde2e9; --grid: #e8ecf1;
  --bad: #c2261c; --a: #0b62c4; --b: #c66a00; --c: #00806a;"""
_DARK = """--paper: #11161c; --card: #1a2129; --ink: #e6ebf1; --soft: #9aa7b5; --line: #2e3843; --grid: #2c3742;
  --bad: #ff7b70; --a: #6cb2ff; --b: #f0a94a; --c: #3fc0a0;"""

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media print {{ :root {{ color-scheme: light; {_LIGHT} --paper: #ffffff; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }}
main {{ max-width: 1040px; margin: 0 auto; padding: 28px 24px 60px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }}
h2 {{ font-size: 16px; margin: 0 0 2px; }}
p {{ margin: 0 0 10px; color: var(--soft); overflow-wrap: anywhere; }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px;
  margin-top: 16px; }}
.warning {{ border-color: var(--bad); color: var(--bad); font-weight: 600; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; margin-top: 16px; }}
.tile {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }}
.tile b {{ display: block; font-size: 21px; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.tile span {{ color: var(--soft); font-size: 12.5px; }}
.bad {{ color: var(--bad); }}
svg {{ display: block; width: 100%; height: auto; margin: 6px 0 2px; }}
svg text {{ fill: var(--soft); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }}
svg text.mark {{ fill: var(--ink); }}
svg text.name {{ font-weight: 600; }}
svg text.name, svg text.mark {{ paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }}
svg text.a {{ fill: var(--a); }} svg text.b {{ fill: var(--b); }} svg text.c {{ fill: var(--c); }}
.grid {{ stroke: var(--grid); }}
.axis {{ stroke: var(--soft); }}
line.mark {{ stroke: var(--ink); stroke-dasharray: 5 4; opacity: .7; }}
.line {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
.line.a {{ stroke: var(--a); }} .line.b {{ stroke: var(--b); }} .line.c {{ stroke: var(--c); }}
.area {{ opacity: .14; }}
.area.a {{ fill: var(--a); }} .area.b {{ fill: var(--b); }} .area.c {{ fill: var(--c); }}
.dot.a {{ fill: var(--a); }} .dot.b {{ fill: var(--b); }} .dot.c {{ fill: var(--c); }}
.cross {{ stroke: var(--bad); stroke-width: 2; fill: none; }}
.hit {{ fill: transparent; }}
.point:hover .dot {{ stroke: var(--ink); stroke-width: 2; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th {{ text-align: right; white-space: nowrap; padding: 6px 8px; font-weight: 600;
  border-bottom: 1px solid var(--line); }}
td {{ padding: 4px 8px; border-top: 1px solid var(--grid); text-align: right; white-space: nowrap; }}
th.left, td.left {{ text-align: left; }}
td.left {{ white-space: normal; overflow-wrap: anywhere; }}
@media (max-width: 640px) {{ main {{ padding: 14px 10px 40px; }} svg text {{ font-size: 17px; }} }}
@media print {{ main {{ padding: 0; max-width: none; }} section, .tile {{ border-color: #bbb; }}
  svg, tr, .tile {{ break-inside: avoid; }} h2, h2 + p {{ break-after: avoid; }}
  .tiles {{ grid-template-columns: repeat(6, 1fr); }} .tile b {{ font-size: 15px; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }} }}
"""
