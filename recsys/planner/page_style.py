"""The page's style sheet: light and dark, one column, nothing from elsewhere."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6776; --line: #dde2e9; --grid: #e8ecf1;
  --accent: #0b62c4; --bad: #c2261c; --track: #eef1f5;
  --input: #7aa6c2; --forward: #2f6f9f; --output: #e0a030; --backward: #8c5aa8; --memory: #3a7d6c;
  --table_wise: #2f6fb5; --column_wise: #d98a00; --row_wise: #00866a; --table_row_wise: #3fa7dc;
  --grid_shard: #c8501e; --data_parallel: #b0578f; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #11161c; --card: #1a2129; --ink: #e6ebf1; --soft: #9aa7b5; --line: #2e3843; --grid: #26303a;
  --accent: #6cb2ff; --bad: #ff7b70; --track: #232c36;
  --input: #8fb9d4; --forward: #4f94c8; --output: #e8b04a; --backward: #b487cf; --memory: #55a792;
  --table_wise: #5a9be0; --column_wise: #eaa535; --row_wise: #2bb391; --table_row_wise: #79c7f0;
  --grid_shard: #ec7c4c; --data_parallel: #d987bb; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 10px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px;
  margin-top: 16px; }
.warning { border-color: var(--bad); color: var(--bad); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin-top: 16px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { color: var(--soft); font-size: 12.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); font-size: 12.5px; margin: 6px 0 4px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px;
  vertical-align: -1px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11.5px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg text.mark { fill: var(--ink); font-weight: 600; }
svg text.bad { fill: var(--bad); font-weight: 600; }
.tools { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: center; margin: 8px 0; }
input, select, button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 5px 9px; }
input[type=search] { min-width: 240px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.scroll { overflow: auto; max-height: 620px; border: 1px solid var(--line); border-radius: 6px; }
canvas { display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: var(--card); text-align: right; white-space: nowrap; z-index: 1;
  box-shadow: inset 0 -1px var(--line); padding: 0; }
th button { border: 0; background: none; padding: 8px 8px; font-weight: 600; cursor: pointer; width: 100%;
  text-align: inherit; }
td { padding: 4px 8px; border-top: 1px solid var(--grid); text-align: right; white-space: nowrap; }
th.left, td.left { text-align: left; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 120px; }
td i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
tbody tr:hover { background: var(--track); }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--card); border-radius: 6px;
  padding: 6px 9px; font-size: 12.5px; max-width: 420px; white-space: pre-line; overflow-wrap: anywhere; display: none;
  z-index: 5; }
@media (max-width: 640px) { main { padding: 14px 10px 40px; } }
"""
